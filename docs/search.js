// Ranks the results of the site's search: pages for users first, decisions and measurements last.
const SECTIONS = [
  [/^(start|how-to|operate|migrate)\//, 10],
  [/^(reference|explanation)\//, 5],
  [/^reference\/renamed-keys/, -20],
  [/^(adr|contribute)\//, -20],
]
// What people type → the page or section that they mean, which has the word.
const MEANT = {
  cron: "how-to/schedule-runs",
  drift: "reference/dashboard",
  install: "start/install",
  noop: "how-to/see-what-would-change",
  puppetdb: "how-to/serve-the-puppetdb-api",
  rollback: "how-to/roll-back",
  secrets: "reference/secrets",
  uninstall: "start/install#uninstall",
  upgrade: "operate/upgrading",
}
const query = new URLSearchParams(location.search).get("q")?.trim().toLowerCase()

var Scorer = { // `var`, because Sphinx declares it again
  // [docname, title, anchor, description, score, file name, kind]
  score: ([page, , anchor, , score]) =>
    SECTIONS.reduce((sum, [section, points]) => sum + (section.test(page) ? points : 0), score) +
    (MEANT[query] === page + (anchor ?? "") ? 50 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
}
