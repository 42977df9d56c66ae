// Times in the reader's zone, ages, and keys. Every view is readable without it.
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const DAY = 24 * 60 * MINUTE;
const DAYS = { "-1": "yesterday ", 0: "", 1: "tomorrow " };
const AGES = [["day", DAY], ["hour", 60 * MINUTE], ["minute", MINUTE]];

const zone = document.getElementById("zone");
const zoneName = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });
const stored = () => {
  try { return localStorage.getItem("zone"); } catch { return null; }
};
let local = stored() === "local";

// The server's time when this page began: the browser's clock may be wrong.
let begin = -Infinity;

// Sets the clock by a page that the server has just rendered.
export function setClock({ body }) {
  begin = Math.max(begin, body.dataset.now * SECOND - performance.now());
}

const now = () => begin + performance.now();

// As ISO 8601 in the shown zone.
function shift(moment) {
  const minutes = local ? new Date(moment).getTimezoneOffset() : 0;
  return new Date(moment - minutes * MINUTE).toISOString();
}

// The rules of `show_moment` and `show_age`, view_context.py.
function showMoment(moment) {
  const [day, clock] = shift(moment).split("T");
  const distance = (Date.parse(day) - Date.parse(shift(now()).split("T")[0])) / DAY;
  const name = local
    ? zoneName.formatToParts(moment).find(({ type }) => type === "timeZoneName").value
    : "UTC";
  return `${DAYS[distance] ?? `${day} `}${clock.slice(0, 8)} ${name}`;
}

function showAge(moment) {
  const age = Math.trunc((now() - moment) / SECOND) * SECOND;
  const size = Math.abs(age);
  const [unit, length] = AGES.find((one) => size >= one[1]) ?? ["s", SECOND];
  const count = Math.floor(size / length);
  const shown = `${count} ${unit}${length > SECOND && count !== 1 ? "s" : ""}`;
  return age < 0 ? `in ${shown}` : `${shown} ago`;
}

// Shows times and ages in a document, except in text that is selected.
export function showTimes(place, kinds = "time.when, time.age") {
  const selection = getSelection();
  for (const time of place.querySelectorAll(kinds)) {
    const moment = Date.parse(time.dateTime);
    if (Number.isNaN(moment)) continue;
    const shown = time.className === "age" ? showAge(moment) : showMoment(moment);
    if (time.textContent === shown) continue;
    if (selection.isCollapsed || !selection.containsNode(time, true)) time.textContent = shown;
  }
}

function showZone() {
  showTimes(document);
  zone.textContent = local ? "Local" : "UTC";
  zone.setAttribute("aria-label", local
    ? "Times in your zone; switch to UTC" : "Times in UTC; switch to your zone");
}

setClock(document);
// On a telephone the navigation is one line that scrolls.
document.querySelector("header [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
zone.hidden = false;
zone.addEventListener("click", () => {
  local = !local;
  try { localStorage.setItem("zone", local ? "local" : "utc"); } catch { /* only for this page then */ }
  showZone();
});
showZone();
setInterval(() => document.hidden || showTimes(document, "time.age"), SECOND);
setInterval(() => document.hidden || showTimes(document), MINUTE);

// Keys: `/` goes to the search field, Escape leaves it.
const search = document.querySelector(".find input");

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target === search) search.blur();
  if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey) return;
  if (!search || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  search.focus();
  search.select();
});
