// Live updates: an event names the changed nodes, the page fetches itself again, and the marked
// parts get what differs. Nothing moves while the reader uses a part: changes that would move
// something wait, behind a button that counts them.
import { setClock, showTimes } from "./page.js";
import "./ask.js";
import { flash, isSelected, patch, refresh } from "./patch.js";

const QUIET = 2000; // milliseconds between two fetches
const MINUTE = 60000; // ages and lateness change without an event
const SETTLE = 300; // after the reader has left a part: a finger's click follows its end

const PARTS = "[data-live][id]";
const parts = () => [...document.querySelectorAll(PARTS)];
const main = document.getElementById("main");
const button = document.getElementById("updates");

// What the reader uses: the pointer or a finger is on it, or it has the focus of the keyboard,
// selected text or a chosen row.
let over = null;
let height = 0; // of the pointer
let held = false; // a finger or a mouse button
let left = null; // the last element in a part that had the focus

const USED = "[data-live] :focus-visible, #updates:focus-visible, [data-live] tr :checked";

const isFrozen = () => held || Boolean(over?.isConnected)
  || document.querySelector(USED) !== null
  || parts().some(isSelected);

// Parts that only one of two pages has, in reverse order.
function findOthers(some, page) {
  return [...some].reverse().filter((part) => page.getElementById(part.id) === null);
}

function add(part) {
  const added = document.importNode(part, true);
  const next = document.getElementById(part.nextElementSibling?.id);
  if (next) next.before(added);
  else main.append(added);
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
  showTimes(latest);
  const pairs = parts().map((part) => [part, latest.getElementById(part.id)])
    .filter(([, now]) => now !== null);
  // A view that cannot be shown now has no parts: the old ones stay.
  const gone = latest.querySelector("main [data-live]") ? findOthers(parts(), latest) : [];
  const added = findOthers(latest.querySelectorAll(PARTS), document);
  const focused = document.activeElement;
  let waiting = 0;
  if (frozen) {
    const shown = pairs.filter(([old]) => main.contains(old));
    waiting = gone.length + added.length + refresh(shown, held);
  } else {
    for (const part of gone) part.remove();
    for (const part of added) add(part);
  }
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
// A view that is not live is not fetched again: a node may have to answer for it. It shows only
// whether the bus is reachable, which an event without nodes announces.
const live = document.querySelector("main [data-live]") !== null;
const address = live ? location.href : "/bus";
const subject = document.querySelector("[data-node]")?.dataset.node;
const headers = { accept: "text/html" };
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
    const answer = await fetch(address, { headers });
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
    headers["last-event-id"] = event.lastEventId; // the answer must not be older
    if (!nodes || (live && (!subject || nodes.includes(subject)))) soon();
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

if (parts().length) {
  if (!document.hidden) listen();
  setInterval(() => document.hidden || soon(), MINUTE);
}
