"""The store: nothing stored is lost, nothing half-written is read, whoever kills whom."""

import gzip
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from opentta.bench.store import results
from opentta.bench.store.files import StoreError, content_hash, from_json, to_json
from opentta.bench.store.results import Record, Store
from opentta.errors import ConfigError, DataError
from opentta.metrics.samples import Samples


def samples_of(n, seed=0):
    rng = np.random.default_rng(seed)
    return Samples(
        index=rng.permutation(n),
        label=rng.integers(-1, 1000, n),
        predicted=rng.integers(0, 1000, n),
        ood_score=rng.random(n, dtype=np.float32) * 7,
        confidence=rng.random(n, dtype=np.float32),
        step=np.arange(n) // 32,
        domain=np.zeros(n, int),
        domains=("fog/5",),
        score_grid=rng.random((n, 11), dtype=np.float32),
        resets=np.array([3, 5]),
    )


def full_record(hash="a1", **changes):
    fields = dict(
        hash=hash,
        status="ok",
        cell={"method": "tent", "seed": 2024, "lr": 1e-3, "ood": ("textures",)},
        config={"lr": 0.1 + 0.2, "recover_below": -math.inf},
        versions={"torch": "2.9", "timm": "1.0"},
        commit="abc",
        weights_tag="vit_base_patch16_224.augreg_in21k_ft_in1k",
        weights_hash="00ff",
        normalization={"name": "imagenet", "mean": (0.485, 0.456, 0.406)},
        preset="table1",
        stream={"spec": {"id": {"name": "imagenet-c"}}, "unreadable_files": ["é/\udc80.png"]},
        counts={"id": np.int64(50_000), "ood": 5000, "skipped": 0},
        device="cpu",
        precision="full",
        threads=1,
        seconds=1.5,
        images_per_second=np.float32(0.1),
        peak_memory=2**40,
        cost=4.07,
        resets=[3],
        metrics={"acc": 0.5, "auroc": math.nan, "domains": {"fog/5": {"auroc": math.nan}}},
    )
    return Record(**{**fields, **changes})


def test_a_record_comes_back_as_it_went_in():
    record = full_record()
    assert Record.from_line(record.to_line()) == record
    assert record.counts["id"] == 50_000 and type(record.counts["id"]) is int
    assert record.cell["ood"] == ["textures"]


def test_a_line_is_strict_json():
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads(full_record().to_line(), parse_constant=refuse)


def test_fields_of_a_newer_version_are_kept():
    line = json.loads(full_record().to_line()) | {"energy_joules": 3.5}
    record = Record.from_line(json.dumps(line).encode())
    assert record.unknown == {"energy_joules": 3.5}
    assert json.loads(record.to_line())["energy_joules"] == 3.5


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "done"},
        {"hash": "../up"},
        {"hash": ""},
        {"cell": {1: 2}},
        {"cell": {"$float": 1}},
        {"config": {"a": {1}}},
    ],
)
def test_what_could_not_be_read_back_is_refused(changes):
    with pytest.raises(ConfigError, match="expected"):
        full_record(**changes)


names = st.text().filter(lambda name: name != "$float")  # the one name that is refused
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, plain_values, max_size=4))
def test_any_plain_cell_comes_back_exactly(cell):
    record = Record(hash="a1", status="ok", cell=cell)
    assert Record.from_line(record.to_line()) == record


def shuffled(value, rng):
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {k: shuffled(value[k], rng) for k in keys}
    return tuple(shuffled(v, rng) for v in value) if isinstance(value, list) else value


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, plain_values, max_size=4), st.randoms(use_true_random=False))
def test_a_hash_knows_no_order_of_keys(cell, rng):
    assert content_hash(cell) == content_hash(shuffled(cell, rng))


def test_a_hash_tells_descriptions_apart():
    cells = [{}, {"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": [1]}, {"a": None}, {"a": True}]
    cells += [{"a": 0.1}, {"a": math.nextafter(0.1, 1)}, {"a": math.nan}, {"a": math.inf}, {"b": 1}]
    assert len({content_hash(cell) for cell in cells}) == len(cells)
    assert len(content_hash({})) == 32


def test_a_hash_never_changes():
    """Stored cells are found again by it: a new value here means that all is computed again."""
    cell = {"method": "tent", "config": {"lr": 0.1 + 0.2}, "seeds": (1, 2), "é": None}
    assert content_hash(cell) == "3d98477e885b70296a4294b38853f4a1"


def test_samples_come_back_with_measures_intact(tmp_path):
    store, samples = Store(tmp_path / "new" / "store"), samples_of(1000)
    thumbnails = np.frombuffer(b"encoded", np.uint8)
    store.append(full_record(), samples, extras={"thumbnail/0": thumbnails})
    back = store.samples("a1")
    for name in ("index", "label", "predicted", "ood_score", "confidence", "step", "resets"):
        assert np.array_equal(getattr(back, name), getattr(samples, name)), name
    assert back.domains == ("fog/5",) and back.origin is None
    assert np.allclose(back.score_grid, samples.score_grid, atol=1e-3)
    assert store.extras("a1")["thumbnail/0"].tobytes() == b"encoded"
    (record,) = store.read()
    assert record.has_samples and record.arrays == ["thumbnail/0"]


def test_a_side_file_is_small(tmp_path):
    store, n = Store(tmp_path), 20_000
    store.append(full_record(), samples_of(n))
    raw_grid, others = 11 * 2, 4 + 2 + 2 + 4 + 4
    assert (tmp_path / "samples" / "a1.npz").stat().st_size < n * (raw_grid + others)


def test_a_cell_stored_twice_reads_once_and_the_last_ok_wins(tmp_path):
    store = Store(tmp_path)
    store.append(full_record("a1", status="failed", reason="first"))
    store.append(full_record("b2", status="failed", reason="first"))
    store.append(full_record("a1", seconds=1.0))
    store.append(full_record("a1", seconds=2.0))
    store.append(full_record("a1", status="failed", reason="later"))
    store.append(full_record("b2", status="failed", reason="second"))
    first, second = store.read()
    assert (first.hash, first.status, first.seconds) == ("a1", "ok", 2.0)
    assert (second.hash, second.reason) == ("b2", "second")
    assert store.hashes() == {"a1"}


def test_a_missing_store_is_empty_to_a_writer_and_an_error_to_a_reader(tmp_path):
    assert Store(tmp_path / "no").read() == [] and Store(tmp_path / "no").hashes() == set()
    with pytest.raises(StoreError, match="run a benchmark"):
        Store(tmp_path / "no", must_exist=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"method,acc\ntent,0.5\n", b'{"hash": "a1"}\n', b"\x89PNG\r\n", b"[1, 2]\n"],
    ids=["empty", "blank", "csv", "other json", "binary", "list"],
)
def test_a_foreign_file_is_a_clear_error(tmp_path, content):
    (tmp_path / "results.jsonl").write_bytes(content)
    with pytest.raises(StoreError, match="expected a store of results"):
        Store(tmp_path).read()
    with pytest.raises(StoreError, match="expected a store of results"):
        Store(tmp_path).check_writable(free=0)
    assert (tmp_path / "results.jsonl").read_bytes() == content


def test_a_file_in_place_of_the_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        Store(tmp_path / "file")
    assert issubclass(StoreError, DataError)


@pytest.mark.parametrize("line", [b"hello", b"[1]", b'{"hash": "a1"}', b'{"hash": 3, "status": 1}'])
def test_a_line_added_by_hand_is_named(tmp_path, line):
    store = Store(tmp_path)
    store.append(full_record())
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(StoreError, match="line 3"):
        store.read()


def pack(folder):
    """As tools/publish_results.py does."""
    lines = folder / "results.jsonl"
    (folder / "results.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    lines.unlink()


def test_a_published_store_is_read_and_not_added_to(tmp_path):
    store = Store(tmp_path)
    store.append(full_record("a1"), samples_of(5, 0))
    expected = store.read()
    pack(tmp_path)
    assert Store(tmp_path, must_exist=True).read() == expected and store.hashes() == {"a1"}
    assert len(store.samples("a1")) == 5
    for write in (lambda: store.append(full_record("b2")), lambda: store.check_writable(free=0)):
        with pytest.raises(StoreError, match=r"published results.*gunzip .*results.jsonl.gz"):
            write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.jsonl.gz", "samples"]


def test_a_damaged_published_store_is_named(tmp_path):
    store = Store(tmp_path)
    store.append(full_record("a1"))
    pack(tmp_path)
    packed = tmp_path / "results.jsonl.gz"
    whole = packed.read_bytes()
    for content in (whole[:-9], whole[:40] + b"x" * 40 + whole[80:], b"no gzip"):
        packed.write_bytes(content)
        with pytest.raises(StoreError, match=r"results\.jsonl\.gz is damaged"):
            store.read()
    packed.write_bytes(gzip.compress(gzip.decompress(whole) + b"hello\n"))
    with pytest.raises(StoreError, match="line 3"):
        store.read()


def test_a_missing_or_broken_side_file_is_a_clear_error(tmp_path):
    store = Store(tmp_path)
    store.append(full_record())
    with pytest.raises(StoreError, match="no such file"):
        store.samples("a1")
    for content in (b"", b"text", b"PK\x03\x04 no zip", b"\x93NUMPY\x01\x00"):
        (tmp_path / "samples" / "a1.npz").write_bytes(content)
        with pytest.raises(DataError, match="run its cell again"):
            store.samples("a1")


def test_a_cell_is_finished_only_while_its_side_file_is_there_and_whole(tmp_path):
    store, side = Store(tmp_path), tmp_path / "samples" / "a1.npz"
    store.append(full_record("b2"))  # has none
    store.append(full_record("a1"), samples_of(100))
    assert store.hashes() == {"a1", "b2"}
    whole = side.read_bytes()
    for cut in (0, 100, len(whole) // 2, len(whole) - 1):
        side.write_bytes(whole[:cut])
        assert store.hashes() == {"b2"}
    side.unlink()
    assert store.hashes() == {"b2"}
    store.append(full_record("a1"), samples_of(100))
    assert store.hashes() == {"a1", "b2"}


def test_whatever_byte_of_a_side_file_is_damaged_the_error_names_it(tmp_path):
    store, side = Store(tmp_path), tmp_path / "samples" / "a1.npz"
    store.append(full_record(), samples_of(20))
    whole, refused = side.read_bytes(), 0
    for place in range(0, len(whole), 3):
        side.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            store.samples("a1")
        except DataError as error:  # nothing else is raised
            refused += 1
            assert str(side) in str(error) or "columns of a stream" in str(error)
    assert refused > 0.6 * len(whole) / 3  # the rest are dates and the like


def test_a_torn_tail_is_passed_over_and_closed_off_wherever_it_was_cut(tmp_path):
    store = Store(tmp_path)
    store.append(full_record("a1"))
    whole = (tmp_path / "results.jsonl").read_bytes()
    line = full_record("b2").to_line()
    for cut in {*range(1, 30), *range(30, len(line), 29), len(line) - 2, len(line) - 1}:
        (tmp_path / "results.jsonl").write_bytes(whole + line[:cut])
        complete = cut == len(line) - 1  # all but the newline: it is a record already
        assert store.hashes() == ({"a1", "b2"} if complete else {"a1"})
        store.append(full_record("c3"))
        assert store.hashes() == ({"a1", "b2", "c3"} if complete else {"a1", "c3"})
    (tmp_path / "results.jsonl").write_bytes(whole + b"\0" * 500)  # after a loss of power
    store.append(full_record("c3"))
    assert store.hashes() == {"a1", "c3"}


WRITER = """
import sys
sys.path.insert(0, {here!r})
from test_results import full_record, samples_of
from opentta.bench.store.results import Store
store, prefix = Store(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
for i in range(int(sys.argv[3])):
    store.append(full_record(f"{{prefix}}{{i}}"), samples_of(400, i) if i % 2 else None)
    print(i, flush=True)
"""


def writer(path, prefix, count=10**6):
    code = WRITER.format(here=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, str(path), prefix, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def check_every_cell_is_whole(store, said):
    """``said``: cells whose append had returned; every one must be there, with its samples."""
    records = {record.hash: record for record in store.read()}
    assert said <= store.hashes()
    for name, record in records.items():
        assert record == full_record(name, has_samples=record.has_samples)
        if record.has_samples:
            assert len(store.samples(name)) == 400


def test_a_killed_writer_loses_nothing_and_leaves_nothing_half_written(tmp_path):
    rng, store, said = random.Random(7), Store(tmp_path), set()
    for life in range(6):
        process = writer(tmp_path, f"w{life}x")
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0.0, 0.15))
        finally:
            process.send_signal(signal.SIGKILL)
        out, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        said |= {f"w{life}x{line}" for line in out.split("\n")[:-1]}
        check_every_cell_is_whole(store, said)
    store.append(full_record("last"))
    check_every_cell_is_whole(store, said | {"last"})
    assert len(said) > 3


EVERY_MOMENT = """
import os, signal, sys
import numpy as np
sys.path.insert(0, {here!r})
from test_results import check_every_cell_is_whole, full_record, samples_of
from opentta.bench.store.results import Store

def armed(module, name, moments):
    real = getattr(module, name)
    def call(*args, **kwargs):
        moments[0] -= 1
        if moments[0] == 0:
            if name == "write":  # half of it reaches the disk
                real(args[0], args[1][: len(args[1]) // 2])
            if name == "savez_compressed":
                args[0].write(b"PK half of an archive")
                args[0].flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(module, name, call)

store, moment, stored, fresh = Store(sys.argv[1]), 0, set(), sys.argv[2] == "fresh"
while True:
    moment += 1
    if fresh:  # a new store each time: the moments of its birth, too
        store, stored = Store(f"{{sys.argv[1]}}/{{moment}}"), set()
    name_of = f"m{{moment}}" if fresh else "first"  # or a cell that is stored already
    child = os.fork()
    if child == 0:
        left = [moment]
        for name in ("open", "write", "fsync", "replace", "link", "close"):
            armed(os, name, left)
        armed(np, "savez_compressed", left)
        store.append(full_record(name_of), samples_of(400))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        stored.add(name_of)
    else:
        assert os.WTERMSIG(status) == signal.SIGKILL
    check_every_cell_is_whole(store, stored)
    store.append(full_record(f"after{{moment}}"), samples_of(400))
    stored.add(f"after{{moment}}")
    check_every_cell_is_whole(store, stored)
    if os.WIFEXITED(status):
        break
print(moment)
"""


@pytest.mark.parametrize(("kind", "moments"), [("fresh", 14), ("grown", 9)])
def test_a_writer_killed_before_any_single_system_call_does_no_harm(tmp_path, kind, moments):
    """Each open, write (half done), sync, rename, link and close of an append, one by one."""
    Store(tmp_path).append(full_record("first"), samples_of(400))
    code = EVERY_MOMENT.format(here=str(Path(__file__).parent))
    command = [sys.executable, "-c", code, tmp_path, kind]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= moments, done.stdout


def test_a_writer_waits_for_the_one_before_it(tmp_path):
    store = Store(tmp_path)
    store.append(full_record("a1"))
    with FileLock(tmp_path / results.LOCK):
        thread = threading.Thread(target=store.append, args=[full_record("b2")])
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and store.hashes() == {"a1"}
    thread.join(10)
    assert store.hashes() == {"a1", "b2"}


def test_two_writers_at_once_do_not_corrupt_a_store(tmp_path):
    both = [writer(tmp_path, prefix, 40) for prefix in ("l", "r")]
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    store = Store(tmp_path)
    check_every_cell_is_whole(store, {f"{p}{i}" for p in "lr" for i in range(40)})
    assert len((tmp_path / "results.jsonl").read_bytes().splitlines()) == 81
    assert not list((tmp_path / "samples").glob(".*"))


def test_a_full_disk_loses_only_the_cell_in_hand(tmp_path):
    """A limit on file size makes the very write that a full disk would make fail half-way."""
    store = Store(tmp_path)
    store.append(full_record("a1"))
    size = (tmp_path / "results.jsonl").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
    try:
        with pytest.raises(StoreError, match="cannot store a cell"):
            store.append(full_record("b2"))
        with pytest.raises(StoreError, match="cannot store a cell"):
            store.append(full_record("c3"), samples_of(4000))
        with pytest.raises(StoreError, match="cannot write to"):
            store.check_writable(free=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "results.jsonl").stat().st_size == size
    assert not list((tmp_path / "samples").iterdir())
    store.append(full_record("b2"))
    assert store.hashes() == {"a1", "b2"}


def test_too_little_space_is_said_before_the_first_batch(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr(results.shutil, "disk_usage", lambda path: usage)  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="256 MiB free"):
        Store(tmp_path).check_writable()


@pytest.mark.parametrize("name", ["", "new"])
def test_a_folder_that_may_not_be_written_is_said_before_the_first_batch(tmp_path_factory, name):
    """In a process without the rights of root, whom permissions do not stop."""
    folder = tmp_path_factory.mktemp("locked")
    code = """
import os, sys
from opentta.bench.store.results import Store
if os.geteuid() == 0:
    os.setuid(65534)
try:
    Store(sys.argv[1]).check_writable(free=0)
except ValueError as err:
    print(type(err).__name__, err)
"""
    for parent in (folder, *folder.parents[:3]):
        parent.chmod(0o755)
    folder.chmod(0o555)
    done = subprocess.run([sys.executable, "-c", code, folder / name], capture_output=True)
    said = done.stdout.decode()
    assert said.startswith("StoreError cannot write to") and "permission denied" in said, done


def test_what_killed_writers_left_is_cleared_after_an_hour(tmp_path):
    store = Store(tmp_path)
    store.append(full_record())
    old, young = tmp_path / "samples" / ".a1.1.tmp", tmp_path / "samples" / ".a1.2.tmp"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 4000,) * 2)
    store.check_writable(free=0)
    assert not old.exists() and young.exists()


def test_a_table_of_1620_cells_reads_in_time(tmp_path):
    store = Store(tmp_path)
    domain = {name: 0.123456789 for name in ("acc", "auroc", "h", "fpr95", "oscr", "ece")}
    metrics = {"acc": 0.5, "domains": {f"corruption{i}/5": domain for i in range(15)}}
    lines = [full_record(f"c{i}", metrics=metrics).to_line() for i in range(1620)]
    (tmp_path / "results.jsonl").write_bytes(results.HEADER + b"".join(lines))
    start = time.process_time()
    assert len(store.read()) == 1620
    assert time.process_time() - start < 3


def test_the_store_needs_no_torch():
    code = """
import sys
sys.modules["torch"] = sys.modules["torchmetrics"] = sys.modules["sklearn"] = None
import opentta.bench.store.results, opentta.bench.paper.tables, opentta.metrics
opentta.metrics.summarize, opentta.metrics.along, opentta.metrics.oscr, opentta.metrics.Samples
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_system_without_fcntl_writes_and_reads_a_store(tmp_path):
    code = """
import sys, warnings
sys.modules["fcntl"] = None
warnings.filterwarnings("ignore", "only soft file lock")
import opentta.report
from opentta.bench.run.claims import Claims
from opentta.bench.store.results import Record, Store
store = Store(sys.argv[1])
store.append(Record(hash="a1", status="ok"))
ours, theirs = Claims(store), Claims(store)
assert ours.take("b2") and not theirs.take("b2")
ours.release("b2")
assert theirs.take("b2")
theirs.close()
assert sorted(path.name for path in store.path.iterdir()) == ["results.jsonl", "samples"]
study = opentta.report.load_study(store.path)
assert [record.hash for record in study.records] == ["a1"]
opentta.report.write_report(study, sys.argv[1] + "/report", only="tables")
"""
    command = [sys.executable, "-W", "error", "-c", code, tmp_path / "store"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_json_survives_a_round_trip_with_every_odd_number():
    values = {"a": [math.inf, -math.inf, -0.0, 5e-324, 1e308, 2**70]}
    assert from_json(to_json(values)) == values
    assert math.copysign(1, from_json(to_json(values))["a"][2]) == -1
