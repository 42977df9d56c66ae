// A link with `data-ask` is followed once the page is open, and the element around it is replaced by
// that of the answer, until that has no such link.
import { showTimes } from "./page.js";

async function ask(link) {
  const { id } = link.closest("[id]");
  if (link.dataset.ask) link.textContent = link.dataset.ask;
  try {
    const answer = await fetch(link.href, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const part = page.getElementById(id);
    const next = part.querySelector("a[data-ask]");
    showTimes(page);
    document.getElementById(id).replaceWith(part);
    if (next) ask(next);
  } catch {
    link.textContent = "Try again";
  }
}

document.querySelectorAll("a[data-ask]").forEach(ask);
