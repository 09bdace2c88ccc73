// Before anything is drawn: the theme that was chosen last, and that scripts run.
(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");
  try {
    var chosen = localStorage.getItem("plumbline-theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch (error) {
    // A page opened from a file may have no storage: the system's theme then.
  }
})();
