"""What the user has said about themselves, and finding it again."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

# A letter of any script, then what belongs to the word: marks of Indic scripts are no letters to `re`.
_WORD = r"((?:(?:Dr|Mr|Mrs|Ms|Prof)\.?\s+)?[^\W\d_][^\s.,!?;:…\"()。，！？、]*)"
_NAME = re.compile(
    r"\b(?:my name is|my name's|my names|call me|i am called|i'm called|the name's|the name is|i go by)\s+" + _WORD,
    re.IGNORECASE,
)
# "I'm Oliver" is a name, "I'm fine" is not: whisper writes names with a capital, if their script has any.
_I_AM = re.compile(r"\b(?:I'm|I am|[Tt]his is|[Ii]t's|[Ii]t is)\s+" + _WORD + r"(?!\s+(?:and\s+)?\w+ing\b)(?=\W|$)")
_NOT_NAMES = (
    "not your my the a an so very just really also still here there good fine okay well sure sorry going trying "
    "feeling happy sad tired bored what who how yes no i english american british french german spanish monday "
    "tuesday wednesday thursday friday saturday sunday january february march april may june july august september "
    "october november december "
    # Whom people say they are, with a capital: of a country, a continent, a language, a faith, a sign.
    "afghan african albanian algerian arab arabic argentine argentinian armenian asian australian austrian azerbaijani "
    "bangladeshi basque belarusian belgian bolivian bosnian brazilian bulgarian burmese cambodian canadian catalan "
    "chilean chinese colombian congolese croatian cuban cypriot czech danish dominican dutch ecuadorian egyptian "
    "estonian ethiopian european filipina filipino finnish georgian ghanaian greek guatemalan haitian hispanic "
    "hungarian icelandic indian indonesian iranian iraqi irish israeli italian jamaican japanese jordanian kazakh "
    "kenyan korean kurdish kuwaiti latin latina latino latvian lebanese libyan lithuanian malaysian mexican mongolian "
    "moroccan nepalese nepali nigerian norwegian pakistani palestinian panamanian persian peruvian polish portuguese "
    "punjabi romanian russian saudi scottish senegalese serbian singaporean slovak slovenian somali sudanese swedish "
    "swiss syrian taiwanese tamil tanzanian thai tibetan tunisian turkish ugandan ukrainian uruguayan uzbek venezuelan "
    "vietnamese welsh yemeni zambian zimbabwean south north east west eastern western southern northern new native "
    "muslim jewish catholic protestant buddhist hindu sikh atheist agnostic mormon orthodox "
    "aries taurus gemini leo virgo libra scorpio sagittarius capricorn aquarius pisces "
    "deaf blind vegan vegetarian ok not ai christmas easter"
)
_NO_NAMES = frozenset(_NOT_NAMES.split())

# (kind, pattern, how it is said back); the value ends at punctuation or a new clause.
_VALUE = r"([^,.!?;]+?)(?=\s+(?:and (?:i|my|what|how|do|can)|but|because|so)\b|[,.!?;]|$)"
_FACTS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (kind, re.compile(pattern.replace("VALUE", _VALUE), re.IGNORECASE), said)
    for kind, pattern, said in (
        ("favourite", r"\bmy favou?rite (\w+(?: \w+)?) (?:is|are) VALUE", "your favourite {0} is {1}"),
        ("home", r"\bi(?:'m| am)? (?:live|living) (?:in )?VALUE", "you live in {0}"),
        ("origin", r"\bi(?:'m| am)? (?:from|come from|came from) VALUE", "you come from {0}"),
        ("work", r"\bi (?:work|am working|'m working) (?:as|in|for|at) VALUE", "your work is {0}"),
        ("age", r"\bi(?:'m| am) (\w+(?:-\w+)?) years old", "you are {0} years old"),
        ("have", r"\bi(?:'ve got| have got| have| own) (?=an? |two |three |some )VALUE", "you have {0}"),
        ("love", r"\bi (?:really |also )?(?:like|love|enjoy|adore) (?!you\b|to know\b|that\b)VALUE", "you like {0}"),
        (
            "dislike",
            r"\bi (?:hate|dislike|don't like|do not like|can't stand) (?!you\b|that\b)VALUE",
            "you don't like {0}",
        ),
    )
)
_SWAPS = {
    "my": "your",
    "i": "you",
    "me": "you",
    "mine": "yours",
    "our": "your",
    "we": "you",
    "am": "are",
    "myself": "yourself",
}


@dataclass
class Memory:
    """What is known about the user in this session.

    Attributes:
        name: as they gave it; "" while unknown.
        facts: kind -> what is said back about it, the newest last.
    """

    name: str = ""
    facts: dict[str, str] = field(default_factory=dict)

    def learn_name(self, text: str) -> bool:
        """Whether `text` tells the user's name; if so it is remembered."""
        text = unicodedata.normalize("NFC", text).replace("’", "'")
        for pattern in (_NAME, _I_AM):
            for match in pattern.finditer(text):
                word = match.group(1).removesuffix("'s").rstrip("'-*_")
                first = word[:1]
                if pattern is _I_AM and first.lower() != first.upper() and not first.isupper():
                    continue
                if word.lower() not in _NO_NAMES and not (pattern is _I_AM and word.lower().endswith("ing")):
                    self.name = word[:30].capitalize() if word.islower() or word.isupper() else word[:30]
                    return True
        return False

    def learn_fact(self, text: str) -> str | None:
        """What `text` tells about the user, as it is said back ("you like apples"), or None. It is remembered."""
        for kind, pattern, said in _FACTS:
            if match := pattern.search(text):
                values = [swap_person(value.strip()) for value in match.groups()]
                if not values[-1] or len(values[-1]) > 80:
                    continue
                fact = said.format(*values)
                key = f"{kind} {values[0]}" if kind in ("favourite", "have", "love", "dislike") else kind
                self.facts.pop(key, None)
                self.facts[key] = fact
                while len(self.facts) > 20:  # a session may be long, what is said of it must not be
                    self.facts.pop(next(iter(self.facts)))
                return fact
        return None

    def about(self, question: str) -> str | None:
        """The remembered fact that answers a question of the user's about themselves, or None."""
        words = set(re.findall(r"[a-z']+", question.lower()))
        for key, fact in reversed(self.facts.items()):
            kind, _, subject = key.partition(" ")
            asked = {
                "favourite": bool(words & {"favourite", "favorite"}) and bool(set(subject.lower().split()) & words),
                "home": bool(words & {"live", "home"}),
                "origin": "from" in words,
                "work": bool(words & {"work", "job", "living"}),
                "age": "old" in words or "age" in words,
                "have": bool(words & {"have", "own", "got"}),
                "love": bool(words & {"like", "love", "enjoy"}),
                "dislike": bool(words & {"hate", "dislike"}),
            }[kind]
            if asked:
                return fact
        return None


def swap_person(text: str) -> str:
    """From the user's mouth to the character's: "my dog" -> "your dog"."""
    return " ".join(_SWAPS.get(word.lower(), word) for word in text.split())
