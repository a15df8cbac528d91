// The page that `minigpt look` writes.
import { lookView } from "./look.js";

document.querySelector("main").append(lookView(JSON.parse(document.getElementById("data").textContent)));
