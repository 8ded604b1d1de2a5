// A button on each block of code that copies its text.
document.addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return; // only on secure pages: https, localhost and files
  for (const block of document.querySelectorAll("article div.highlight")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.querySelector("pre").textContent.trimEnd() + "\n");
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.append(button);
  }
});
