"use strict";
// Everything works without this script; it adds sorting, filters and copying.
(function () {
  document.documentElement.classList.add("scripts");

  function columns(table) {
    // The place of every heading among the cells of a row, over two rows of heads.
    const top = table.tHead.rows[0];
    const low = table.tHead.rows[1];
    return low ? [top.cells[0], ...low.cells] : [...top.cells];
  }

  function key(cell) {
    const raw = cell.dataset.v !== undefined ? cell.dataset.v : cell.textContent.trim();
    const number = Number(raw.replaceAll(",", ""));
    if (raw === "" || (cell.querySelector(".none") && cell.dataset.v === undefined)) return null;
    return Number.isNaN(number) ? raw : number;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = columns(table);
    heads.forEach((head, place) => {
      const button = head.querySelector("button");
      if (!button) return;
      const first = Number(button.dataset.better) === 1 ? "descending" : "ascending";
      const second = first === "descending" ? "ascending" : "descending";
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === first ? second : now === second ? null : first;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        let rows = original;
        if (next) {
          head.setAttribute("aria-sort", next);
          const sign = next === "ascending" ? 1 : -1;
          rows = original
            .map((row, order) => ({ row, order, value: key(row.cells[place]) }))
            .sort((a, b) => {
              if (a.value === null || b.value === null)
                return (a.value === null) - (b.value === null) || a.order - b.order;
              return sign * compare(a.value, b.value) || a.order - b.order;
            })
            .map((each) => each.row);
        }
        body.append(...rows);
      });
    });
  }

  const form = document.querySelector("form.filters");
  if (form) {
    const shots = [...document.querySelectorAll(".shots > li")];
    const told = form.querySelector("output");
    const filter = () => {
      const wanted = [...form.querySelectorAll("select")].filter((each) => each.value);
      let shown = 0;
      for (const shot of shots) {
        shot.hidden = !wanted.every((each) => shot.dataset[each.dataset.key] === each.value);
        shown += shot.hidden ? 0 : 1;
      }
      for (const group of document.querySelectorAll(".shots-group"))
        group.hidden = !group.querySelector(".shots > li:not([hidden])");
      told.textContent = shown === 1 ? "1 sample" : shown + " samples";
    };
    form.addEventListener("change", filter);
    filter(); // one row of the table at a time is enough to begin with
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => {
      const code = button.parentElement.querySelector("code");
      const range = document.createRange();
      range.selectNodeContents(code);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
    });
  }
})();
