// A field above each long table of the site: it shows the rows that have all words, for example "qwen3 refused".
// Tables with many columns get the width of the list of contents; long cells show three lines, and all of them on a click.
// Tables in the output of commands are shown with all columns: smaller, and without the list of contents where needed.
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

// The line between the header and the rows of a table in the output of a command: `----  ---------`.
const RULE = /^ *-{3,}(?:  -{3,})+ *$/gm, FONT_REM = [0.68, 0.62, 0.56, 0.5];

function numColumns(code) {
  return Math.max(0, ...[...code.textContent.matchAll(RULE)].map(([rule]) => rule.length));
}

function isCut(code) {
  const style = getComputedStyle(code), probe = document.createElement("span");
  probe.textContent = "0".repeat(numColumns(code));
  code.append(probe);
  const width = probe.getBoundingClientRect().width;
  probe.remove();
  return width > code.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
}

function fitOutputs() {
  if (!matchMedia("(min-width: 76.25em)").matches) return;
  const blocks = [...document.querySelectorAll(".md-typeset pre > code")].filter(numColumns);
  const steps = [() => {}, () => document.body.classList.add("has-wide-code"), () => document.body.classList.add("has-wide-table")];
  for (const step of steps) {
    if (!blocks.some(isCut)) return;
    step();
    for (const code of blocks) {
      for (const size of FONT_REM) {
        code.style.fontSize = `${size}rem`;
        if (!isCut(code)) break;
      }
    }
  }
}

document.addEventListener("DOMContentLoaded", () => setTimeout(() => { addFilters(); fitOutputs(); }));
