// Live updates: an event names the changed nodes, the page fetches itself again, and the marked
// parts get what differs. Nothing moves while the reader uses a part: changes that would move
// something wait, behind a button that counts them.
import { setClock, showTimes } from "./page.js";

const QUIET = 1000; // milliseconds between two fetches
const MINUTE = 60000; // ages and lateness change without an event
const SETTLE = 300; // after the reader has left a part: a finger's click follows its end
const FLASH = 2000;

const parts = document.querySelectorAll("[data-live][id]");
const main = document.getElementById("main");
const button = document.getElementById("updates");

// Patching: an element keeps its identity, and with it focus, selection and what is entered. Rows
// and items are recognised by their id or first link, other elements by their place.
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

function patch(old, now) {
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

function flash() {
  changed.delete(null);
  for (const row of changed) {
    row.classList.add("new");
    setTimeout(() => row.classList.remove("new"), FLASH);
  }
  changed.clear();
}

// What the reader uses: the pointer or a finger is on it, or it has the focus of the keyboard,
// selected text or a chosen row.
let over = null;
let height = 0; // of the pointer
let held = false; // a finger or a mouse button
let left = null; // the last element in a part that had the focus

function isSelected(element) {
  const selection = getSelection();
  return !selection.isCollapsed && selection.containsNode(element, true);
}

const USED = "[data-live] :focus-visible, #updates:focus-visible, [data-live] tr :checked";

const isFrozen = () => held || Boolean(over?.isConnected)
  || document.querySelector(USED) !== null
  || [...parts].some(isSelected);

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

// Changes what keeps its place; returns the number of rows and parts that have to wait.
function refresh(pairs) {
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
  if (held) return count(differ); // a click ends on the element on which it began
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

let latest = null; // the page as fetched, until all of it is shown

function offer(waiting) {
  if (waiting) {
    if (button.hidden) button.classList.toggle("top", height > innerHeight / 2);
    button.textContent = `${waiting} ${waiting === 1 ? "update" : "updates"}: show`;
    button.hidden = false;
  } else {
    button.textContent = "Up to date";
    button.hidden = over !== button; // the pointer must not end on what is below it
  }
}

function show(frozen) {
  if (!latest) return;
  const pairs = [...parts].map((part) => [part, latest.getElementById(part.id)])
    .filter(([, now]) => now !== null);
  showTimes(latest);
  const focused = document.activeElement;
  let waiting = 0;
  if (frozen) waiting = refresh(pairs.filter(([old]) => main.contains(old)));
  for (const [old, now] of pairs) if (!frozen || !main.contains(old)) patch(old, now);
  if (!frozen) latest = null;
  if (focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true });
  }
  flash();
  offer(waiting);
}

let settling = 0;

function settle() {
  if (!latest && over !== button) button.hidden = true;
  clearTimeout(settling);
  settling = setTimeout(() => latest && !isFrozen() && show(false), SETTLE);
}

document.addEventListener("pointerover", (event) => {
  over = event.target.closest("[data-live], #updates");
  height = event.clientY;
  settle();
});
document.addEventListener("pointerout", (event) => {
  if (!event.relatedTarget) over = null;
  settle();
});
document.addEventListener("pointermove", (event) => { height = event.clientY; });
document.addEventListener("pointerdown", (event) => { held = event.button === 0; });
for (const end of ["pointerup", "touchend", "touchcancel", "dragend"]) {
  document.addEventListener(end, (event) => {
    held = Boolean(event.touches?.length);
    settle();
  });
}
document.addEventListener("focusout", (event) => {
  if (event.target.closest("[data-live]")) left = event.target;
  settle();
});
document.addEventListener("selectionchange", settle);
document.addEventListener("change", settle);
button.addEventListener("click", (event) => {
  show(false);
  if (event.detail) return; // with the mouse
  (left?.isConnected ? left : main).focus();
  button.hidden = true;
});

// Fetching.
// A view that is not live is not fetched again: a node may have to answer for it.
const address = document.querySelector("main [data-live]") ? location.href : "/bus";
const subject = document.querySelector("[data-node]")?.dataset.node;
const cut = document.getElementById("cut");
let asking = false;
let again = false;
let last = -Infinity;
let timer = 0;

async function look() {
  timer = 0;
  asking = true;
  again = false;
  last = performance.now();
  try {
    const answer = await fetch(address, { headers: { accept: "text/html" } });
    const text = await answer.text();
    if (answer.status === 403) location.reload();
    if (answer.status === 429) again = true;
    if (answer.ok) {
      latest = new DOMParser().parseFromString(text, "text/html");
      setClock(latest);
      show(isFrozen());
      cut.hidden = true;
    }
  } catch {
    cut.hidden = false;
  }
  asking = false;
  if (again) soon();
}

function soon() {
  if (asking) {
    again = true;
  } else if (!timer) {
    timer = setTimeout(look, Math.max(0, last + QUIET - performance.now()));
  }
}

let source = null;

function listen() {
  source = new EventSource("/events");
  source.onmessage = (event) => {
    const { nodes } = JSON.parse(event.data);
    if (!subject || !nodes || nodes.includes(subject)) soon();
  };
  source.onopen = () => {
    cut.hidden = true;
    soon(); // changes since the page was rendered
  };
  source.onerror = () => {
    cut.hidden = false;
    if (source.readyState === EventSource.CLOSED) setTimeout(() => document.hidden || restart(), 5000);
  };
}

function restart() {
  source?.close();
  listen();
}

// A browser has six connections to a server: a hidden page closes its connection.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
  } else {
    restart();
  }
});

if (parts.length) {
  if (!document.hidden) listen();
  setInterval(() => document.hidden || soon(), MINUTE);
}
