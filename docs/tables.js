// A field above each long table of the site: it shows the rows that have all words, for example "qwen3 refused".
// Tables with many columns get the width of the list of contents; long cells show three lines, and all of them on a click.
const MIN_ROWS = 12, MIN_COLUMNS = 7, LONG_CELL = 60;
const TEXTS = {
  en: {label: "Filter rows", count: (shown, all) => `${shown} of ${all} rows`},
  zh: {label: "筛选行", count: (shown, all) => `${shown} / ${all} 行`},
};

function addFilter(table) {
  const rows = [...table.tBodies[0].rows];
  const texts = TEXTS[document.documentElement.lang] || TEXTS.en;
  const contents = rows.map((row) => row.textContent.toLowerCase());
  const field = document.createElement("input");
  field.type = "search";
  field.placeholder = field.ariaLabel = texts.label;
  const count = document.createElement("output");
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row, index) => { row.hidden = !words.every((word) => contents[index].includes(word)); });
    count.textContent = texts.count(rows.filter((row) => !row.hidden).length, rows.length);
  };
  const bar = document.createElement("div");
  bar.className = "table-filter";
  bar.append(field, count);
  // The theme puts wide tables into a box of their own that scrolls; the field stays above it.
  (table.closest(".md-typeset__scrollwrap") || table).before(bar);
  field.addEventListener("input", show);
  show();
}

function makeWide(table) {
  document.body.classList.add("has-wide-table");
  table.dataset.wide = "";  // not a class: the theme styles tables without one
  for (const cell of table.tBodies[0].querySelectorAll("td:not(:first-child)")) {
    if (cell.textContent.length <= LONG_CELL) continue;
    const box = document.createElement("div");
    box.className = "long-cell";
    box.tabIndex = 0;
    box.append(...cell.childNodes);
    box.addEventListener("click", () => box.classList.toggle("is-open"));
    cell.append(box);
  }
}

function addFilters() {
  for (const table of document.querySelectorAll(".md-typeset table")) {
    if (!table.tBodies.length) continue;
    if (table.tBodies[0].rows.length >= MIN_ROWS) addFilter(table);
    if (table.tHead.rows[0].cells.length >= MIN_COLUMNS) makeWide(table);
  }
}

document.addEventListener("DOMContentLoaded", () => setTimeout(addFilters));
