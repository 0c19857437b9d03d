"""Put results of the embedded benchmark into the package, for its report page:

    python tools/ship_results.py STORE --presets mini-full mini-ablation mini-measure

Every finished cell of these presets that ran on the shipped backbone, without side files. Writes
src/opentta/assets/results.json.gz and its hash. Run tools/make_assets.py first: new weights make
old results wrong, so it leaves them out of the manifest.
"""

import argparse
import json
from pathlib import Path

from make_assets import HOME, put

from opentta.assets import RESULTS
from opentta.bench.plan.backbones import EMBEDDED
from opentta.bench.plan.weights import find_weights
from opentta.bench.store.plans import read_plans
from opentta.bench.store.results import Store
from opentta.report.study.shipped import pack_shipped


def main() -> None:
    """Choose, pack, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--presets", nargs="+", default=["mini-full"])
    args = parser.parse_args()
    manifest = json.loads((HOME / "manifest.json").read_text(encoding="utf-8"))
    plans = [plan for plan in read_plans(args.store) if plan.preset in args.presets]
    wanted = {place.hash for plan in plans for place in plan.cells}
    records = [r for r in Store(args.store, must_exist=True).read() if r.hash in wanted and r.ok]
    weights = find_weights(EMBEDDED).hash
    other = {record.weights_hash for record in records} - {weights}
    if other or not records:
        raise SystemExit(f"expected cells on the shipped weights {weights[:12]}, found {other}")
    manifest[RESULTS] = put(RESULTS, pack_shipped(plans, records))
    text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    (HOME / "manifest.json").write_text(text, encoding="utf-8")
    print(f"{len(records)} cells, {manifest[RESULTS]['bytes']:,} bytes")


if __name__ == "__main__":
    main()
