"""The page against the real ingress and LiveKit server; understudies play the characters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from characters.character import list_characters
from deploy.planning.waiting import AdmissionConfig
from tests.deploy.browser.conftest import OpenPage
from tests.deploy.browser.site import Site, open_site

SLOW = 60_000  # ms, for what crosses the media server on a busy machine
PHONE = {"width": 360, "height": 740}

# Stands in for the browser's own refusal.
REFUSE = "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', '{}'));"


def call(page: Page, name: str = "Ruby", button: str = "#talk") -> None:
    page.get_by_role("radio", name=name).check(force=True)
    page.click(button)
    live(page)


def live(page: Page) -> None:
    expect(page.locator("#frame[data-live]")).to_be_visible(timeout=SLOW)


def said(page: Page, text: str) -> None:
    expect(page.locator("#lines .theirs:not([data-interim]) p", has_text=text)).to_be_visible(timeout=SLOW)


def write(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Enter")


def session_id(page: Page) -> str:
    return page.evaluate("JSON.parse(sessionStorage.getItem('characters.session')).id")


def test_gallery_shows_every_character(site: Site, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(site.url)
    radios = page.get_by_role("radio")
    expect(radios).to_have_count(len(list_characters()))
    for character in list_characters():
        found = page.get_by_role("radio", name=character.character.name)
        expect(found).to_have_accessible_description(character.character.description)
    loaded = "() => [...document.querySelectorAll('.card img')].every(i => i.naturalWidth === 176)"
    page.wait_for_function(loaded)
    page.screenshot(path=artefacts / "gallery.png")


def test_noise_is_called_noise(site: Site, open_page: OpenPage) -> None:
    with open_site(random_weights=True) as noisy:
        page = open_page(noisy.url)
        expect(
            page.get_by_text("The pictures are noise: this server runs a model with random weights.")
        ).to_be_visible()
    page = open_page(site.url)
    expect(page.get_by_role("radio").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    expect(page.locator("#noise")).to_be_hidden()


def test_a_portrait_that_needs_another_model_says_so(open_page: OpenPage, artefacts: Path) -> None:
    with open_site(portraits=("photograph",)) as other:
        page = open_page(other.url)
        ruby = page.get_by_role("radio", name="Ruby")
        expect(ruby).to_have_accessible_description(re.compile("A drawing, needs another model: small$"))
        page.screenshot(path=artefacts / "needs.png")


def test_a_face_that_stands_still_is_not_said_to_speak(site: Site, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(site.url)
    call(page)
    said(page, "I'm Ruby!")
    expect(page.locator("#state")).to_have_text("Listening", timeout=SLOW)
    write(page, "Please freeze, and say a sentence that is long enough for it.")
    expect(page.locator("#state")).to_have_text("Speaking", timeout=SLOW)
    expect(page.locator("#state")).to_have_text("One moment…", timeout=3_000)
    expect(page.locator("#frame")).not_to_have_attribute("data-speaking", "")
    page.screenshot(path=artefacts / "still.png")
    expect(page.locator("#state")).to_have_text(re.compile("Speaking|Listening"), timeout=SLOW)


def test_talk_write_interrupt_and_hang_up(site: Site, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(site.url)
    call(page)
    expect(page.get_by_role("heading", name="Ruby")).to_be_focused()
    expect(page.get_by_role("button", name="Mute", exact=True)).to_be_enabled()
    said(page, "I'm Ruby!")
    page.get_by_role("button", name="Figures").click()
    expect(page.locator("[data-figure=chunk] dd")).to_have_text("82 ms", timeout=SLOW)
    expect(page.locator("[data-figure=seen] dd")).to_contain_text("fps", timeout=SLOW)
    write(page, "and so it goes on, " * 40 + "to its end")
    expect(page.locator("#lines .theirs[data-interim] p", has_text="and so it goes on")).to_be_visible(timeout=SLOW)
    expect(page.locator("#state")).to_have_text("Speaking", timeout=SLOW)
    page.screenshot(path=artefacts / "call.png")
    page.keyboard.press("Escape")
    expect(page.locator("#state")).to_have_text("Listening", timeout=20_000)  # to its end it would take 47 s
    expect(page.locator("#lines .theirs p").last).not_to_contain_text("its end")
    page.get_by_role("button", name="Mute", exact=True).click()
    expect(page.get_by_role("button", name="Unmute")).to_be_visible()
    page.get_by_role("button", name="Hang up").click()
    expect(page.get_by_role("status").filter(has_text="You talked with Ruby")).to_be_visible()


def test_keyboard_alone(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url)
    expect(page.get_by_role("heading", name="Who would you like")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    chosen = page.locator("input[name=character]:focus")
    name = page.locator(f"#{chosen.get_attribute('aria-labelledby')}").inner_text()
    page.keyboard.press("Tab")
    page.keyboard.type("Ada")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name=f"Talk to {name}")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    live(page)
    page.keyboard.press("Tab")  # the conversation, which scrolls
    page.keyboard.press("Tab")
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    said(page, "You wrote: hello")
    expect(page.locator("#announce")).to_have_text(f"{name}: You wrote: hello")
    end = page.get_by_role("button", name="Hang up")
    for _ in range(6):
        page.keyboard.press("Tab")
        if end.evaluate("e => e === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Who would you like")).to_be_focused()


@pytest.mark.parametrize("view", ["gallery", "call"])
def test_fits_a_phone(view: str, site: Site, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(site.url, viewport=PHONE, has_touch=True, is_mobile=True)
    page.wait_for_selector(".card")
    if view == "call":
        call(page, button="#type")
        page.get_by_role("button", name="Figures").click()
    page.screenshot(path=artefacts / f"phone-{view}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for button in page.locator("button:visible").all():
        box = button.bounding_box()
        assert box and box["width"] >= 44 and box["height"] >= 43.9, button.inner_text()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
        assert view == "gallery" or box["y"] + box["height"] <= PHONE["height"]


def test_queue(site: Site, open_page: OpenPage, artefacts: Path) -> None:
    first, second = open_page(site.url), open_page(site.url)
    call(first)
    second.get_by_role("radio", name="Bao").check(force=True)
    second.click("#type")
    expect(second.locator("#state")).to_contain_text("You are next, about", timeout=SLOW)
    second.screenshot(path=artefacts / "queue.png")
    first.click("#end")
    live(second)
    said(second, "Bao")


def test_leaving_the_queue(site: Site, open_page: OpenPage) -> None:
    first, second = open_page(site.url), open_page(site.url)
    call(first)
    second.click("#type")
    expect(second.locator("#state")).to_contain_text("You are next", timeout=SLOW)
    second.click("#end")
    expect(second.locator("#lobby")).to_be_visible()
    expect(second.locator("#notice")).to_be_hidden()


def test_reload_finds_the_session(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url)
    call(page, "Walter")
    before = session_id(page)
    page.reload()
    expect(page.get_by_role("heading", name="Walter")).to_be_visible()
    live(page)
    assert session_id(page) == before
    expect(page.get_by_role("button", name="Mute", exact=True)).to_be_enabled()


def test_media_server_dies_and_comes_back(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url)
    call(page, "Fenn")
    before = session_id(page)
    site.livekit.stop()
    expect(page.locator("#state")).to_contain_text("connecting", timeout=SLOW)
    write(page, "hello out there")
    expect(page.locator("#lines .mine[data-interim]")).to_have_text("YouHello out there", ignore_case=True)
    site.start_livekit()
    said(page, "You wrote: hello out there")
    expect(page.locator("#state")).to_have_text(re.compile("Listening|Speaking"), timeout=SLOW)
    live(page)
    write(page, "are you there")
    said(page, "You wrote: are you there")
    expect(page.locator("#lines .theirs p", has_text="You wrote")).to_have_count(2)
    expect(page.locator("#lines .mine[data-interim]")).to_have_count(0)
    assert session_id(page) == before


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("NotAllowedError", "may not use your microphone"),
        ("NotFoundError", "No microphone was found"),
        ("NotReadableError", "does not answer"),
    ],
)
def test_no_microphone(name: str, told: str, site: Site, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(site.url, REFUSE.format(name))
    page.click("#talk")
    expect(page.get_by_role("alert")).to_contain_text(told)
    page.screenshot(path=artefacts / f"{name}.png")
    page.locator("#notice").get_by_role("button", name="Type instead").click()
    live(page)
    page.get_by_role("button", name="Unmute").click()
    expect(page.locator("#lines .note")).to_contain_text(told)


def test_server_gone_and_back(site: Site, open_page: OpenPage, artefacts: Path) -> None:
    page = open_page(site.url)
    page.wait_for_selector(".card")
    gone = lambda route: route.abort()  # noqa: E731
    page.route("**/v1/sessions", gone)
    page.click("#type")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    page.screenshot(path=artefacts / "server-gone.png")
    page.unroute("**/v1/sessions", gone)
    page.get_by_role("button", name="Try again").click()
    live(page)


def test_a_failure_in_mid_conversation(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url)
    call(page, button="#type")
    failed = {"state": "FAILED", "participant_token": None, "error": {"code": "pipeline_failed", "message": "x"}}

    def answer(route: Route) -> None:
        if route.request.method == "GET":
            route.fulfill(json=failed)
        else:
            route.continue_()

    page.route("**/v1/sessions/*", answer)
    page.request.delete(f"{site.url}/v1/sessions/{session_id(page)}")
    expect(page.get_by_role("alert")).to_contain_text("The character has run into trouble", timeout=SLOW)


def test_unsupported_browser(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url, "delete window.RTCPeerConnection; delete window.webkitRTCPeerConnection;")
    expect(page.get_by_role("alert")).to_contain_text("This browser cannot make video calls")


def test_client_not_fetched(site: Site, open_page: OpenPage) -> None:
    page = open_page("about:blank")
    page.route("**/livekit-client*", lambda route: route.fulfill(status=404))
    page.goto(site.url)
    expect(page.get_by_role("alert")).to_contain_text("fetch.sh")


@pytest.fixture
def small_site(client: None) -> Iterator[Site]:
    with open_site(admission=AdmissionConfig(queue=0), api_key="k") as site:
        yield site


def test_full_queue_and_key(small_site: Site, open_page: OpenPage, artefacts: Path) -> None:
    locked = open_page(small_site.url)
    expect(locked.get_by_role("alert")).to_contain_text("asks for a key")
    first, second = open_page(f"{small_site.url}/#key=k"), open_page(f"{small_site.url}/#key=k")
    assert not urlsplit(first.url).fragment
    call(first, button="#type")
    second.click("#type")
    expect(second.get_by_role("alert")).to_contain_text("the queue is full")
    second.screenshot(path=artefacts / "queue-full.png")
