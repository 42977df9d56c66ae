// Suggestions for the search field. Without this script the field is a plain search.
const QUIET_MS = 150; // since the last key
const FEWEST = 2; // characters
const field = document.querySelector(".find input");
const options = document.getElementById("suggestions");
let waiting = 0;

async function suggest(text) {
  try {
    const answer = await fetch(`/find.json?text=${encodeURIComponent(text)}`);
    if (!answer.ok || field.value.trim() !== text) return; // another request follows
    const { suggestions } = await answer.json();
    options.replaceChildren(...suggestions.map(({ term, kind }) => new Option(kind, term)));
  } catch { /* no connection: the page shows that */ }
}

field?.addEventListener("input", () => {
  clearTimeout(waiting);
  const text = field.value.trim();
  if (text.length >= FEWEST) waiting = setTimeout(() => suggest(text), QUIET_MS);
});
