// How the search orders its results: users' pages first, then what is for people who change opforge, decisions last.
var Scorer = {
  score: ([docname, , , , score]) => {
    if (docname.startsWith("docs/decisions/")) return score - 1000;
    return /^(docs|README|SECURITY|examples)/.test(docname) ? score : score - 500;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
