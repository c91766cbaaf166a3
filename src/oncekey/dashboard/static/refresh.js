// Replaces the live parts of the overview every few seconds. The page works without it.
"use strict";
(() => {
  const line = document.getElementById("refresh");
  const seconds = Number(line.dataset.seconds);
  const button = document.createElement("button");
  let paused = false;
  button.type = "button";
  button.className = "quiet";

  const label = () => {
    button.textContent = paused ? "Go on refreshing" : "Pause";
    button.setAttribute("aria-pressed", String(paused));
  };

  const refresh = async () => {
    if (paused || document.hidden) return;
    // Whoever has the focus inside must not lose it, nor a link under the finger.
    const busy = document.activeElement.closest("[data-live]");
    let fresh;
    try {
      const response = await fetch(location.pathname, { headers: { Accept: "text/html" } });
      if (!response.ok) throw new Error(String(response.status));
      fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    } catch {
      line.classList.add("offline");
      return;
    }
    line.classList.remove("offline");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
      if (part !== busy && other && other.innerHTML !== part.innerHTML) {
        part.replaceChildren(...other.childNodes);
      }
    }
  };

  button.addEventListener("click", () => { paused = !paused; label(); });
  label();
  line.querySelector("a").replaceWith(button);
  setInterval(refresh, seconds * 1000);
})();
