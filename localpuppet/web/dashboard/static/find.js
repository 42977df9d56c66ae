// Suggestions for the search field. Without this script the field is a plain search.
"use strict";

const QUIET_MS = 150; // since the last key
const FEWEST = 2; // characters
const field = document.querySelector(".find input");
const options = document.getElementById("suggestions");
let waiting = 0;
let request = null;

async function suggest(text) {
  request?.abort();
  request = new AbortController();
  try {
    const answer = await fetch(`/find.json?text=${encodeURIComponent(text)}`, { signal: request.signal });
    if (!answer.ok) return;
    const { suggestions } = await answer.json();
    options.replaceChildren(...suggestions.map(({ term, kind }) => {
      const option = document.createElement("option");
      option.value = term;
      option.label = kind;
      return option;
    }));
  } catch { /* a newer request, or no connection: the page shows that */ }
}

field?.addEventListener("input", () => {
  clearTimeout(waiting);
  const text = field.value.trim();
  if (text.length >= FEWEST) waiting = setTimeout(() => suggest(text), QUIET_MS);
});
