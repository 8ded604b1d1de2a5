// Sphinx looks for the text of a result by the selector "#opforge.load", in which ".load" means a class.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const htmlToText = Search.htmlToText;
  Search.htmlToText = (html, anchor) => htmlToText(html, anchor && `#${CSS.escape(anchor.slice(1))}`);
});
