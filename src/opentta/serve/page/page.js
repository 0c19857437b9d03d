"use strict";
// Draws what v1/events sends, once per second. The service sends the present; the curves are what
// this page has seen since it was opened.
(function () {
  const WINDOW = 300; // seconds that the curves show, once so many have passed
  const SHORTEST = 30;
  const RECENT = 30; // seconds that a share of groups is of
  const GAP = 15; // seconds without an event that leave a gap
  const SILENCE = 15000; // milliseconds without an event: the connection is taken for lost
  const LONGEST_PAUSE = 15; // seconds between two attempts to connect
  const SVG = "http://www.w3.org/2000/svg";
  const byId = (id) => document.getElementById(id);
  const points = []; // events without pictures, the oldest first

  // Words ------------------------------------------------------------------------------------

  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
  const percent = (value) => (known(value) ? `${Math.round(100 * value)} %` : "–");
  const number = (value) => (known(value) ? value.toLocaleString("en") : "–");
  const nats = (value) => (known(value) ? value.toFixed(2) : "–");
  function millis(value) {
    if (!known(value)) return "–";
    if (value >= 1000) return `${(value / 1000).toFixed(value < 10000 ? 1 : 0)} s`;
    return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
  }
  const words = (name) => String(name).replaceAll("_", " ");
  const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

  function make(kind, attributes = {}, ...children) {
    const made = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function drawn(kind, attributes, ...children) {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function tiles(list, entries) {
    // [name, value, small print]
    while (list.children.length > entries.length) list.lastChild.remove();
    entries.forEach(([name, value, more], i) => {
      if (!list.children[i]) {
        list.append(make("div", {}, make("dt"), make("dd", {}, make("span"), make("small"))));
      }
      const tile = list.children[i];
      write(tile.querySelector("dt"), name);
      write(tile.querySelector("span"), value);
      write(tile.querySelector("small"), more || "");
    });
  }

  // Curves -----------------------------------------------------------------------------------

  function span(now) {
    return Math.min(WINDOW, Math.max(SHORTEST, now - points[0].time));
  }

  function path(values, now, top) {
    // An SVG path in a box of 1000 x 100; a gap where a value or some seconds are missing.
    const width = span(now);
    let last = null;
    const steps = [];
    for (const [time, value] of values) {
      if (!known(value)) { last = null; continue; }
      const x = 1000 * (1 - (now - time) / width);
      const y = 100 - 100 * Math.min(value / top, 1);
      steps.push(`${last !== null && time - last < GAP ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(2)}`);
      last = time;
    }
    return steps.length ? `${steps.join("")}h0.01` : ""; // a lone point is a dot
  }

  function above(highest) {
    // A round number for the top of an axis.
    if (!(highest > 0)) return 1;
    const size = 10 ** Math.floor(Math.log10(highest));
    return [1, 2, 5, 10].map((n) => n * size).find((n) => n >= highest);
  }

  const sample = (second) => drawn("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" },
    drawn("path", { class: second ? "line second" : "line", d: "M1 4H23" }));

  function curve(id, title, lines, show, { share = false, missing = "", marks = [] } = {}) {
    // lines: [name, [[time, value], ...]]; the first is drawn through, the second in dashes.
    const now = points[points.length - 1].time;
    const from = now - span(now);
    const values = lines.flatMap(([, all]) => all.filter(([t, v]) => t >= from && known(v)).map(([, v]) => v));
    const top = share ? 1 : above(Math.max(...values, 0));
    const caption = make("figcaption", {}, make("b", {}, title));
    const paths = lines.map(([name, all], i) => {
      const latest = all[all.length - 1][1];
      const key = make("span", { class: "key" }, sample(i > 0), name ? `${name} ` : "", make("strong", {}, show(latest)));
      caption.append(key);
      return drawn("path", { class: i > 0 ? "line second" : "line", d: path(all, now, top) });
    });
    const said = lines.map(([name, all]) => `${name} ${show(all[all.length - 1][1])}`).join(", ");
    const picture = drawn("svg", {
      viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${said}`,
    }, drawn("path", { class: "grid", d: "M0 50H1000" }));
    const notes = make("div", { class: "marks" });
    marks.forEach(([time, text], i) => {
      if (i + 1 < marks.length && marks[i + 1][0] < from) return;
      const at = Math.max(0, 1 - (now - time) / span(now));
      const end = i + 1 < marks.length ? 1 - (now - marks[i + 1][0]) / span(now) : 1;
      if (time >= from) picture.append(drawn("path", { class: "mark", d: `M${1000 * at} 0V100` }));
      const note = make("span", {}, text);
      note.style.left = `${100 * at}%`;
      note.style.width = `${100 * (end - at)}%`;
      notes.append(note);
    });
    picture.append(...paths.reverse()); // the first on top
    const ago = Math.round(span(now));
    const plot = make("div", { class: "plot" },
      make("span", { class: "high" }, show(top)), make("span", { class: "low" }, share ? "0 %" : "0"),
      picture, notes,
      make("div", { class: "when" }, make("span", {}, ago >= 120 ? `${Math.round(ago / 60)} min ago` : `${ago} s ago`), make("span", {}, "now")));
    if (!values.length) plot.append(make("span", { class: "none" }, missing));
    byId(id).replaceChildren(caption, plot);
  }

  const mean = (values) => {
    const there = values.filter(known);
    return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
  };

  function stepped(counts) {
    // [time, {stepped, skipped} or undefined] -> share of the groups of the last seconds.
    let first = 0;
    return counts.map(([time, now], i) => {
      while (counts[first][0] < time - RECENT) first += 1;
      const then = counts.slice(first, i + 1).find(([, c]) => c);
      if (!now || !then) return [time, null];
      const learned = now.stepped - then[1].stepped;
      const all = learned + now.skipped - then[1].skipped;
      return [time, learned >= 0 && all > 0 ? learned / all : null];
    });
  }

  function curves() {
    const chosen = byId("which").value;
    const of = (point) => (chosen ? point.streams.filter((s) => s.name === chosen) : point.streams);
    const series = (name) => points.map((p) => [p.time, mean(of(p).map((s) => s[name]))]);
    curve("curve-agreement", "agreement with the source", [["", series("agreement")]], percent,
      { share: true, missing: "no guard, or nothing learned yet" });
    curve("curve-entropy", "entropy, nats", [["adapting", series("entropy")], ["frozen", series("source_entropy")]], nats,
      { missing: "no guard, or nothing learned yet" });
    curve("curve-rejected", "share rejected", [["", series("rejected")]], percent,
      { share: true, missing: "not calibrated" });
    const counts = points.map((p) => [p.time, chosen ? of(p)[0] : p.groups]);
    curve("curve-stepped", "share of groups stepped", [["", stepped(counts)]], percent,
      { share: true, missing: "no whole group lately" });
    curve("curve-latency", "latency of all streams", [
      ["median", points.map((p) => [p.time, p.latency_ms.p50])],
      ["99 of 100", points.map((p) => [p.time, p.latency_ms.p99])],
    ], millis, { missing: "no request in the last minute" });
  }

  // The parts of the page ----------------------------------------------------------------------

  function demo(now) {
    byId("demo").hidden = !now.demo;
    if (!now.demo) return;
    const named = (d) => (d.severity ? `${words(d.corruption)}, severity ${d.severity}` : words(d.corruption));
    write(byId("corruption"), named(now.demo));
    tiles(byId("demo-tiles"), [
      ["accuracy, adapting", percent(now.demo.accuracy), "of known images lately"],
      ["accuracy, frozen", percent(now.demo.frozen_accuracy), "of the same images"],
      ["unknown rejected", percent(now.demo.rejected_unknown), "of unknown images lately"],
      ["known rejected", percent(now.demo.rejected_known), "fewer is better"],
    ]);
    const marks = [];
    for (const { time, demo: then } of points) {
      if (!then) continue;
      const name = words(then.corruption);
      if (!marks.length || marks[marks.length - 1][1] !== name) marks.push([time, name]);
    }
    const series = (name) => points.map((p) => [p.time, p.demo ? p.demo[name] : null]);
    curve("curve-accuracy", "accuracy", [["adapting", series("accuracy")], ["frozen", series("frozen_accuracy")]], percent,
      { share: true, missing: "waiting for the first images", marks });
  }

  function health(stream, group) {
    // [kind, word]: the kind has a sign of its own, so that no colour is needed.
    if (stream.is_paused) return ["paused", "paused by an alarm"];
    if (stream.is_frozen) return ["frozen", "frozen"];
    if (known(stream.agreement) && stream.agreement < 0.7) return ["look", "leaves the source"];
    if (stream.skipped > stream.stepped) return ["look", "no time to learn"];
    return stream.stepped ? ["learning", "learning"] : ["waiting", "waiting for a group"];
  }

  function streams(now) {
    const table = byId("streams");
    table.hidden = !now.streams.length;
    byId("no-streams").hidden = now.streams.length > 0;
    const more = now.stream_count > now.streams.length;
    write(byId("how-many"), more ? `the latest ${now.streams.length} of ${number(now.stream_count)}` : "");
    const body = table.tBodies[0];
    const rows = new Map([...body.rows].map((row) => [row.dataset.stream, row]));
    const names = ["", "images", "groups", "agreement", "entropy (source)", "rejected", "waiting", "version"];
    const ordered = [...now.streams].sort((a, b) => (a.name < b.name ? -1 : 1));
    const wanted = ordered.map((stream) => {
      let row = rows.get(stream.name);
      if (!row) {
        row = make("tr", { "data-stream": stream.name }, make("th", { scope: "row" }, stream.name));
        for (const name of names) row.append(make("td", name ? { "data-name": name } : {}, make("span")));
      }
      const [kind, word] = health(stream);
      row.cells[1].dataset.health = kind;
      const skipped = stream.skipped ? `, ${number(stream.skipped)} skipped` : "";
      const source = known(stream.source_entropy) ? ` (${nats(stream.source_entropy)})` : "";
      [word, number(stream.images), `${number(stream.stepped)} stepped${skipped}`, percent(stream.agreement),
        nats(stream.entropy) + source, percent(stream.rejected), number(stream.waiting), number(stream.version),
      ].forEach((text, i) => write(row.cells[i + 1].firstChild, text));
      return row;
    });
    if (wanted.length !== body.rows.length || wanted.some((row, i) => row !== body.rows[i])) {
      body.replaceChildren(...wanted);
    }
    choices(ordered.map((stream) => stream.name));
  }

  function choices(names) {
    const select = byId("which");
    const before = select.value;
    const there = [...select.options].map((option) => option.value);
    if (there.length === names.length + 1 && names.every((name, i) => name === there[i + 1])) return;
    const all = make("option", { value: "" }, "all streams (mean)");
    select.replaceChildren(all, ...names.map((name) => make("option", { value: name }, name)));
    select.value = names.includes(before) ? before : "";
    const gone = byId("gone");
    if (before) gone.hidden = names.includes(before);
    if (!gone.hidden) write(gone, `${before || "That stream"} is no longer among the streams: these are of all.`);
  }

  function images(now) {
    byId("no-images").hidden = now.latest.length > 0;
    const list = byId("images");
    const items = new Map([...list.children].map((item) => [item.dataset.key, item]));
    list.replaceChildren(...now.latest.map((image) => {
      const key = `${image.stream}/${image.ticket}`;
      const truth = now.demo && now.demo.truth ? now.demo.truth[key] : undefined;
      if (items.has(key) && items.get(key).dataset.told === String(truth)) return items.get(key);
      const name = image.name === null ? `class ${image.label}` : words(image.name);
      const about = make("div", {}, make("b", {}, image.rejected ? "unknown" : name));
      if (image.rejected) about.append(make("span", {}, `nearest: ${name}`));
      if (truth !== undefined) about.append(verdict(image, name, truth));
      const p = known(image.p_value) ? `, p\u00a0=\u00a0${image.p_value.toFixed(image.p_value < 0.1 ? 3 : 2)}` : "";
      about.append(make("span", {}, image.stream + p));
      const picture = make("img", { alt: "", width: 64, height: 64 });
      if (String(image.picture).startsWith("data:image/")) picture.src = image.picture;
      const kind = image.rejected ? { class: "unknown" } : {};
      return make("li", { ...kind, "data-key": key, "data-told": String(truth) }, picture, about);
    }));
  }

  function verdict(image, name, truth) {
    // truth: the class; null: of no class that the model knows.
    const right = truth === null ? image.rejected : !image.rejected && words(truth) === name;
    if (right) return make("span", { class: "right" }, truth === null ? "✓ it is" : "✓ right");
    return make("span", { class: "wrong" }, `✗ is ${truth === null ? "unknown" : words(truth)}`);
  }

  function show(now) {
    document.body.classList.remove("stale");
    byId("lost").hidden = true;
    state("live", "live");
    const { latest, ...point } = now;
    if (points.length && point.time <= points[points.length - 1].time) points.length = 0; // another clock
    points.push(point);
    while (points[0].time < now.time - WINDOW - RECENT) points.shift();
    write(byId("model"), `${now.method} around ${now.model}`);
    const { stepped: learned, skipped } = now.groups;
    tiles(byId("totals"), [
      ["streams", number(now.stream_count)],
      ["images", number(now.images), `${number(now.requests)} requests`],
      ["latency", millis(now.latency_ms.p50), `99 of 100 within ${millis(now.latency_ms.p99)}`],
      ["groups stepped", number(learned), skipped ? `${number(skipped)} skipped` : "none skipped"],
    ]);
    streams(now);
    demo(now);
    images(now);
    curves();
  }

  // The connection -----------------------------------------------------------------------------

  let token = null; // of this tab alone
  try { token = sessionStorage.getItem("opentta-token"); } catch { /* storage is switched off */ }
  let failures = 0;

  function state(kind, text) {
    const shown = byId("connection");
    shown.dataset.state = kind;
    write(shown, text);
  }

  async function listen() {
    // Until the connection ends. Header fields are why this is no EventSource.
    const stop = new AbortController();
    let silence = setTimeout(() => stop.abort(), SILENCE);
    try {
      const headers = { Accept: "text/event-stream" };
      if (token) headers.Authorization = `Bearer ${token}`;
      // Not relative to the page: its address may carry a password, which fetch refuses.
      const events = new URL("v1/events", location.origin + location.pathname);
      const answer = await fetch(events, { headers, cache: "no-store", signal: stop.signal });
      if (answer.status === 401 || answer.status === 403) return "token";
      if (!answer.ok) return `the service answered ${answer.status}`;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return "the service ended it";
        clearTimeout(silence);
        silence = setTimeout(() => stop.abort(), SILENCE);
        const whole = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
        rest = whole.pop();
        for (const event of whole) {
          const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5));
          if (!data.length) continue;
          failures = 0;
          show(JSON.parse(data.join("\n")));
        }
      }
    } catch (error) {
      if (stop.signal.aborted) return "nothing came for some seconds";
      if (error instanceof TypeError) return "the service cannot be reached"; // so fetch says it
      throw error;
    } finally {
      clearTimeout(silence);
      stop.abort();
    }
  }

  async function run() {
    for (;;) {
      const reason = await listen();
      if (reason === "token") {
        await asked();
        continue;
      }
      failures += 1;
      document.body.classList.add("stale");
      let pause = Math.min(2 ** (failures - 1), LONGEST_PAUSE);
      for (; pause > 0; pause -= 1) {
        const since = points.length ? ` The numbers are from ${clock(points[points.length - 1].time)}.` : "";
        state("lost", "connection lost");
        write(byId("lost"), `Connection lost: ${reason}. Trying again in ${pause} s.${since}`);
        byId("lost").hidden = false;
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
    }
  }

  function asked() {
    // Wait for a token; one that was there was refused.
    state("waiting", "needs a token");
    byId("ask").hidden = false;
    byId("lost").hidden = true;
    byId("refused").hidden = token === null;
    const field = byId("token");
    field.value = "";
    field.focus();
    return new Promise((resolve) => {
      byId("ask").addEventListener("submit", (event) => {
        event.preventDefault();
        token = field.value;
        try { sessionStorage.setItem("opentta-token", token); } catch { /* it is asked for again */ }
        byId("ask").hidden = true;
        state("waiting", "connecting");
        resolve();
      }, { once: true });
    });
  }

  byId("which").addEventListener("change", () => {
    byId("gone").hidden = true;
    if (points.length) curves();
  });
  choices([]);
  run();
})();
