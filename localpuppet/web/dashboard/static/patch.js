// Makes elements of this page equal to those of a newer one. An element keeps its identity, and with
// it focus, selection and what is entered. Rows and items are recognised by their id or first link,
// other elements by their place.
const FLASH = 2000; // milliseconds
const main = document.getElementById("main");
const changed = new Set(); // rows

const keyOf = (node) => node.id
  || (/^(LI|TR)$/.test(node.nodeName) && node.querySelector("a")?.getAttribute("href")) || "";

function patchAttributes(old, now) {
  for (const { name } of [...old.attributes]) {
    const opened = name === "open" && old.nodeName === "DETAILS"; // by the reader
    if (!opened && !now.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of now.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function note(element) {
  if (!element.closest("time")) changed.add(element.closest("tr[id]"));
}

export function patch(old, now) {
  if (old.isEqualNode(now)) return;
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = now.nodeValue;
    note(old.parentElement);
    return;
  }
  patchAttributes(old, now);
  const keyed = new Map([...old.children].map((child) => [keyOf(child), child]));
  const wanted = new Set([...now.children].map(keyOf));
  keyed.delete("");
  let at = old.firstChild;
  const drop = () => {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  };
  for (const next of now.childNodes) {
    while (at && keyOf(at) && !wanted.has(keyOf(at))) drop();
    const key = keyOf(next);
    const same = key ? keyed.get(key) : at && !keyOf(at) && at;
    keyed.delete(key);
    if (!same || same.nodeName !== next.nodeName) {
      const added = document.importNode(next, true);
      old.insertBefore(added, at);
      if (added.nodeType === Node.ELEMENT_NODE) note(added);
    } else {
      patch(same, next);
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
    }
  }
  while (at) drop();
}

// Marks the rows that have changed, for a moment.
export function flash() {
  changed.delete(null);
  for (const row of changed) {
    row.classList.add("new");
    setTimeout(() => row.classList.remove("new"), FLASH);
  }
  changed.clear();
}

export function isSelected(element) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(element, true);
}

// The places and targets of everything that can be used.
function layout(element) {
  const { x, y } = element === main ? { x: 0, y: 0 } : element.getBoundingClientRect();
  const used = element.querySelectorAll("a, button, input, select, summary, tr");
  return [element, ...used].map((one) => {
    const box = one.getBoundingClientRect();
    return [box.x - x, box.y - y, box.width, box.height].map(Math.round) + one.getAttribute("href");
  }).join();
}

// The ids of the largest number of rows that can stay where they are.
function findStaying(ids, order) {
  const place = new Map(order.map((id, number) => [id, number]));
  const ends = []; // for each length, the last row of the choice that ends first
  const previous = new Map();
  for (const id of ids) {
    const later = ends.findIndex((end) => place.get(end) >= place.get(id));
    const length = later < 0 ? ends.length : later;
    previous.set(id, ends[length - 1]);
    ends[length] = id;
  }
  const staying = new Set();
  for (let id = ends.at(-1); id !== undefined; id = previous.get(id)) staying.add(id);
  return staying;
}

const rowsOf = (part) => new Map([...part.querySelectorAll("tr[id]")].map((row) => [row.id, row]));

// Fixes the widths of columns; a part that is shown as a whole gets its own again.
function fixColumns(part) {
  const table = part.querySelector("table");
  if (!table || table.style.tableLayout) return;
  const cells = [...table.querySelectorAll("thead th, thead td")];
  const widths = cells.map((cell) => cell.getBoundingClientRect().width);
  cells.forEach((cell, number) => { cell.style.width = `${widths[number]}px`; });
  table.style.tableLayout = "fixed";
}

// Changes elements, and takes back what moves something.
function attempt(pairs) {
  const before = layout(main);
  const tried = pairs.map(([old, now]) => {
    const around = old.closest("tr") ?? old;
    return { old, now, around, copy: old.cloneNode(true), was: layout(around) };
  });
  for (const { old, now } of tried) patch(old, now);
  const undo = (some) => some.forEach(({ old, copy, around }) => {
    patch(old, copy);
    changed.delete(around);
  });
  undo(tried.filter(({ around, was }) => was !== layout(around)));
  if (layout(main) !== before) undo(tried);
}

// Changes what keeps its place; returns the number of rows and parts that have to wait. With `held`,
// nothing is changed: a click ends on the element on which it began.
export function refresh(pairs, held) {
  const waiting = new Set();
  const units = []; // rows, and parts without rows
  for (const [old, now] of pairs) {
    const [before, after] = [rowsOf(old), rowsOf(now)];
    if (!before.size) {
      units.push([old, now]);
      continue;
    }
    fixColumns(old);
    const both = [...after.keys()].filter((id) => before.has(id));
    const staying = findStaying(both, [...before.keys()]);
    for (const id of [...before.keys(), ...after.keys()]) if (!staying.has(id)) waiting.add(id);
    for (const id of both) units.push([before.get(id), after.get(id)]);
  }
  const differ = units.filter(([old, now]) => !old.isEqualNode(now));
  const count = (some) => some.reduce((all, [old]) => all.add(old.id), waiting).size;
  if (held) return count(differ);
  const isLate = ([old, now]) => !old.isEqualNode(now);
  const free = differ.filter(([old]) => !isSelected(old));
  attempt(free);
  const rows = free.filter(isLate).filter(([old]) => old.cells)
    .map(([old, now]) => [old.cells, now.cells]);
  for (let column = 0; rows.some(([old]) => column < old.length); column += 1) {
    attempt(rows.filter((cells) => cells.every((some) => column < some.length))
      .map(([old, now]) => [old[column], now[column]]));
  }
  return count(differ.filter(isLate));
}
