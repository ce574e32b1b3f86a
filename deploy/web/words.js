// What the page says when something is wrong: what happened, what to do, and whether trying again or typing helps.

const SAID = {
  no_microphone: ["No microphone was found.", "Plug one in and try again, or type instead.", "type"],
  microphone_denied: [
    "The browser may not use your microphone.",
    "Allow it with the icon beside the address, then try again. Or type instead.", "type",
  ],
  microphone_busy: ["The microphone does not answer.", "Another program may be using it. Or type instead.", "type"],
  microphone_insecure: [
    "The browser gives the microphone only to secure pages.",
    "Open this page over https or on localhost. Or type instead.", "type",
  ],
  unsupported: ["This browser cannot make video calls.", "Use a current Chrome, Edge, Firefox or Safari."],
  no_client: [
    "This installation is incomplete.",
    "Its page lacks the LiveKit client: whoever runs it calls deploy/web/fetch.sh once.",
  ],
  server_gone: ["The server does not answer.", "Check that it is running and that you are online.", "retry"],
  livekit_unreachable: ["The media server does not answer.", "It may be starting again. Try in a moment.", "retry"],
  room_unreachable: [
    "The call could not be connected.",
    "A firewall may be blocking the media server. Try another network.", "retry",
  ],
  queue_full: ["Everyone is busy and the queue is full.", "Please try again in a little while.", "retry"],
  quota: ["You have as many conversations as you may have.", "End one of them, then try again.", "retry"],
  time_limit: ["The time is up.", "Conversations have a longest length here. You may begin another one.", "retry"],
  unauthorised: ["This server asks for a key.", "Open the page with the full address that you were given."],
  unknown_character: ["This character is no longer here.", "Choose another one."],
  unknown_session: ["The conversation is over.", "You were away for too long."],
  left_queue: ["You lost your place in the queue.", "The page was not heard from for too long.", "retry"],
  not_joined: ["The call was not taken in time.", "", "retry"],
  pipeline_failed: ["The character has run into trouble.", "Its part of the server failed. Try again.", "retry"],
  elsewhere: ["This conversation goes on in another tab.", ""],
  no_characters: ["There is nobody here yet.", "Whoever runs this server can add a character with “characters new”."],
  completed: ["The conversation is over.", ""],
  cancelled: ["The call was cancelled.", ""],
};

/** @returns {{title: string, advice: string, remedy: "type"|"retry"|undefined}} */
export function describe(problem) {
  const [title, advice, remedy] = SAID[problem.code]
    ?? ["Something went wrong.", `${problem.message} (${problem.code ?? problem.name})`, "retry"];
  return { title, advice, remedy };
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} seconds`;
  return `${Math.round(seconds / 60)} minutes`;
}

export function queued({ position, estimated_wait_s: wait }) {
  if (position === null) return "Getting ready…";
  const place = position === 1 ? "You are next" : `You are number ${position} in the queue`;
  return wait ? `${place}, about ${duration(wait)}` : place;
}
