// Live updates, times in the reader's zone, and zooming. Every view is readable without it.
"use strict";

const QUIET = 1000; // milliseconds between two updates
const MINUTE = 60000; // ages and lateness change without an event

// Times: UTC as the server writes them, or the reader's zone.
const zone = document.getElementById("zone");
const stored = () => {
  try { return localStorage.getItem("zone"); } catch { return null; }
};
let local = stored() === "local";

function showTimes(place) {
  for (const time of place.querySelectorAll("time")) {
    time.dataset.utc ??= time.textContent;
    const moment = new Date(time.dateTime);
    const far = /^\d{4}-/.test(time.dataset.utc);
    const two = (number) => String(number).padStart(2, "0");
    const day = `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} `;
    const clock = `${two(moment.getHours())}:${two(moment.getMinutes())}`;
    const shown = local ? (far ? day : "") + clock : time.dataset.utc;
    if (time.textContent !== shown) time.textContent = shown;
    time.title = local ? time.dateTime : moment.toLocaleString();
  }
  zone.textContent = local ? "Local" : "UTC";
  zone.setAttribute("aria-label", local
    ? "Times in your zone; switch to UTC" : "Times in UTC; switch to your zone");
}

zone.hidden = false;
zone.addEventListener("click", () => {
  local = !local;
  try { localStorage.setItem("zone", local ? "local" : "utc"); } catch { /* only for this page then */ }
  showTimes(document);
});
showTimes(document);

// Live updates: an event names the changed nodes. The page fetches itself again and replaces the
// marked parts.
const parts = document.querySelectorAll("[data-live]");
// A view that is not live is not fetched again: a node may have to answer for it.
const address = document.querySelector("main [data-live]") ? location.href : "/bus";
const subject = document.querySelector("[data-node]")?.dataset.node;
let asking = false;
let again = false;
let last = -Infinity;
let timer = 0;

function mark(before, now) {
  const old = new Map([...before.querySelectorAll("tr[id]")].map((row) => [row.id, row.textContent]));
  for (const row of now.querySelectorAll("tr[id]")) {
    if (old.get(row.id) === row.textContent) continue;
    row.classList.add("new");
    setTimeout(() => row.classList.remove("new"), 2000);
  }
}

function place(now) {
  const before = document.getElementById(now.id);
  if (!before) return;
  showTimes(now);
  for (const open of before.querySelectorAll("details[open]")) {
    const titles = [...now.querySelectorAll("summary")];
    const same = titles.find((one) => one.textContent === open.firstElementChild.textContent);
    if (same) same.parentElement.open = true;
  }
  if (before.isEqualNode(now)) return;
  const focused = before.contains(document.activeElement) && document.activeElement;
  mark(before, now);
  before.replaceWith(now);
  if (focused?.href) {
    [...now.querySelectorAll("a")].find((one) => one.href === focused.href)?.focus();
  }
}

async function look() {
  timer = 0;
  asking = true;
  again = false;
  last = performance.now();
  try {
    const answer = await fetch(address, { headers: { accept: "text/html" } });
    const text = await answer.text();
    const known = new DOMParser().parseFromString(text, "text/html");
    if (answer.status === 403) location.reload();
    if (answer.status === 429) again = true;
    if (answer.ok) {
      for (const part of known.querySelectorAll("[data-live][id]")) {
        place(document.adoptNode(part));
      }
      document.getElementById("cut").hidden = true;
    }
  } catch {
    document.getElementById("cut").hidden = false;
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
    document.getElementById("cut").hidden = true;
    soon(); // changes since the page was rendered
  };
  source.onerror = () => {
    document.getElementById("cut").hidden = false;
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

// Pictures: drag with the mouse; zoom with Ctrl and the wheel, + and -, and the buttons.
const picture = document.querySelector(".picture");

const widthOf = (image) => image.getBoundingClientRect().width;

function size(width) {
  const image = picture.querySelector("svg");
  const before = widthOf(image);
  const now = Math.min(8 * image.viewBox.baseVal.width, Math.max(100, width));
  const [x, y] = [picture.clientWidth / 2, picture.clientHeight / 2];
  image.style.width = `${now}px`; // keep the centre
  image.style.height = "auto";
  picture.scrollLeft = ((picture.scrollLeft + x) * now) / before - x;
  picture.scrollTop = ((picture.scrollTop + y) * now) / before - y;
}

function zoom(factor) {
  size(factor ? widthOf(picture.querySelector("svg")) * factor : picture.clientWidth - 20);
}

if (picture) {
  document.getElementById("zooms").hidden = false;
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  }
  picture.addEventListener("keydown", (event) => {
    if (event.key === "+") zoom(1.25);
    if (event.key === "-") zoom(0.8);
  });
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
  picture.addEventListener("pointermove", (event) => {
    const drags = event.pointerType === "mouse" && event.buttons === 1;
    picture.classList.toggle("drag", drags);
    if (drags) picture.scrollBy(-event.movementX, -event.movementY);
  });
  picture.addEventListener("dragstart", (event) => event.preventDefault()); // of a link
}
