# ruff: noqa: E501  (a pattern a line)
"""What the user may be after: patterns over lower-case words, punctuation removed. The first match wins.

Patterns are loose on purpose: whisper hears "what's you name" and "who or you", drops first words and swaps homophones.
"""

from __future__ import annotations

import re

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("again", r"what did you (just )?say|(say|repeat) (that|it)( again)?|can you repeat|could you repeat|come again|^(pardon|sorry what|what)( me)?$|^(once more|one more time|again)( please)?$"),
    ("ask user name", r"what('s| is|s)? my name|(know|remember) (my name|who i am|me\b)|who am i\b|what am i called"),
    ("recall all", r"what do you (know|remember) about me|what (did|have) i (tell|told|say|said) (to )?you|tell me about me\b"),
    ("recall", r"(what|where|how|which|who).* (do|am|are|is|does|did) (i|my)\b|what('s| is|s) my\b|do you (know|remember) (what|where|how|which|my)"),
    ("ask name", r"\b(what('s| is|s| was|)|watch|tell me|know|may i have|can i have|give me) (is )?(you|your|you're|youre|yo|the) names?\b|^(and )?(your|you're) name( please)?$|what (are|should i|can i|do i|shall i) (you )?call(ed)?( you)?|who (are|or|is|a) (you|this)\b|who('s| is) (this|there)|^(and )?who you are"),
    ("age", r"how old (are|is|were) you|what('s| is) your age|your birthday|when were you (born|made)"),
    ("what am i", r"are you (really |actually |even )?(an? )?(real|human|robot|person|ai|a i|alive|computer|machine|bot|program|artificial|true|fake|live|cat|panda|fox|man|woman|alien)\b|what (are|or) you\b(?! (doing|like|up|think|talk|say|go|call|call))|what kind of (thing|being|character|creature) are you|are you open source|open source|is (there )?(a )?(human|person|someone) (behind|there)"),
    ("who made me", r"who (made|built|created|wrote|programmed|designed|invented|is behind|owns) you|where were you made"),
    ("how do i work", r"how (do|are|does|did|can) (you|it|this) (work|made|built|function|talk|speak|do (this|that|it)|generated|animated)|how does (this|it|that) work|how (are|were) you made"),
    ("can do", r"what (can|could|else can|do|are|things can) you (do|able|help|good|know)|what (can|could) (we|i) (do|ask|talk)|how (can|could|do) you help|can you help|help me|what are you (able|good)|what do you know|what you can do|what (can|should) i ask|your (skills|abilities)|^help$"),
    ("how am i", r"how (are|or|is|r) (you|things|it going|your day|everything|life)|how('s| is) (it|your day|life|everything)|how do you (do|feel)|are you (ok|okay|well|fine|good|all right|alright)|you doing (ok|okay|well|all right)|what's up|how have you been|and you$|^(and|what|how) about you(rself)?$"),
    ("time", r"what time|what('s| is|s) the time|the time( is it|$| please| now)|time is it|tell me the time|do you have the time|what.{0,4} o'?clock"),
    ("date", r"what('s| is|s)? (day|date|the date|the day|today|todays|today's|month|year)|which (day|month|year)|(day|date|month|year) is (it|today)|today's date|what year|date today|tell me the date"),
    ("story", r"\b(tell|know|have).* story|a story"),
    ("joke", r"\bjokes?\b|make me laugh|something funny|(tell|say) .*funny|another one|one more( joke)?$|cheer me up"),
    ("sing", r"can you (sing|dance|rap|whistle)|sing (me|a|us|something|for)|dance (for|with)"),
    ("see", r"can you see|do you see me|what do (you see|i look)|how do i look"),
    ("hear", r"(can|do|could) you hear|are you (there|still there|listening)|(hello )?anybody there|is this (thing )?(on|working)|^test(ing)?( \w+)*$|mic(rophone)? (check|test)"),
    ("language", r"(do|can) you (speak|talk|understand) (\w+ )?(french|german|spanish|italian|chinese|japanese|other languages|another language|languages?|russian|dutch|portuguese|hindi|arabic)|(say|what) .* in (french|german|spanish|italian|chinese|japanese)|how many languages"),
    ("live facts", r"\b(weather|temperature|forecast|raining|rain today|news|stock|score|traffic|who won|president|prime minister)\b"),
    ("eat or sleep", r"(do|can|did) you (ever )?(eat|sleep|drink|dream|get (tired|hungry))|are you (hungry|tired|thirsty|sleepy)|have you (eaten|slept)|what do you (eat|dream)"),
    ("feelings", r"(do|can) you (have )?(feel|feelings|emotions?|love|think|get (sad|angry|lonely))|are you (happy|sad|lonely|angry|conscious|sentient|in love)|have (feelings|emotions|a soul)"),
    ("family", r"(do you have|have you got|any|your) (a |any )?(family|brothers?|sisters?|siblings|mother|mom|mum|father|dad|parents|children|kids|friends|pets?|boyfriend|girlfriend|husband|wife)|are you married"),
    ("like it", r"^(and |so |well )?do you (\w+ )?(like|love) \w+"),
    ("taste", r"what('s| is| are|s)? (your|you're) favou?rite|(do|what|which|what else) (\w+ )?(do )?you (really )?(like|love|enjoy|prefer|care)|your (hobby|hobbies|interests)|what are you (into|interested)|what makes you happy"),
    ("where", r"where (are|do|is|did|or) you(r home|r house)?\b|where you (live|from|are)|where('s| is) (your home|your house)"),
    ("about me", r"(tell|talk) (me |to me )?(\w+ ){0,3}(about )?(yourself|your self|your life|your story)|introduce yourself|about (you|yourself)$|describe yourself|what do you do\b|what are you doing|your job|what('s| is) your (job|work|story|profession)"),
    ("night", r"good ?night|sleep well|going to bed"),
    ("bye", r"\b(good ?bye|bye|see you|see ya|farewell|so long|talk to you later|catch you later|take care)\b|(i|we) (have to|must|need to|got to|gotta|should|am going to|'m going to|better) (go|leave|run|be going)\b|i('m| am) (leaving|off)\b|that('s| is|'ll be) all$"),
    ("love", r"i (really )?(love|like|adore|miss) you\b|marry me|will you be my"),
    ("compliment", r"you('re| are|r| look| sound| seem)( \w+){0,2} (nice|great|funny|cool|smart|clever|amazing|awesome|beautiful|pretty|cute|good|lovely|kind|sweet|wonderful|brilliant|fantastic|charming|the best)|(good|great|nice|well) (job|done|work|one|answer)|^(that('s| is|'s a) )?(really |very |so |pretty )?(amazing|awesome|brilliant|impressive|fantastic)"),
    ("insult", r"you('re| are|r)( \w+){0,2} (stupid|dumb|bad|boring|ugly|useless|terrible|awful|annoying|an idiot|wrong|slow|horrible|creepy|weird)|shut up|i hate you|you suck|that('s| is) (wrong|not right|stupid|rubbish)"),
    ("laugh", r"^(ha ?)+h?$|\b(haha\w*|hehe\w*|lol)\b|that('s| is|'s so| was| is so)( \w+)? (funny|hilarious)|good joke|made me laugh|^(very |so )?funny"),
    ("sorry", r"^(i'm |i am |oh )?(so |very )?sorry\b|my (bad|mistake)|excuse me|i apologi[sz]e"),
    ("stop", r"^(please |okay |no )*(stop|wait|hold on|hang on|be quiet|quiet|silence|enough|pause|hush|one moment|just a moment)\b|stop (talking|it|that|please)|let me (speak|talk|think|finish)"),
    ("bored", r"\bi('m| am| feel)( \w+)? bored"),
    ("sorry for you", r"\bi('m| am| feel| was|'m feeling| am feeling)( \w+){0,2} (sad|tired|ill|sick|angry|lonely|down|depressed|stressed|worried|afraid|scared|upset|unhappy|bad|terrible|awful|exhausted|anxious|hungry|not (good|well|great|okay))|^(not (so |very |too )?(good|well|great)|bad|terrible|awful|so so|tired)|(bad|hard|rough|long|terrible|awful) (day|week|time)"),
    ("glad", r"\bi('m| am| feel|'m doing| am doing|'m feeling)( \w+){0,2} (good|fine|well|great|happy|okay|ok|fantastic|excellent|excited|glad|all right|alright)|^(pretty |very |quite |really |all |i'm )?(good|fine|great|well|not bad|excellent|fantastic|wonderful|all right|alright|okay thanks)\b( thank.*| today| and you.*)?$|(good|great|nice|lovely) (day|week|time)$"),
    ("thanks", r"\b(thank you|thanks|thank|thanx|cheers|appreciate)\b"),
    ("greet", r"^(well |oh |so )?(hello|hi|hey|hallo|hullo|howdy|greetings|good (morning|afternoon|evening|day)|hiya|yo)\b|nice to (meet|see|hear)|pleased to meet"),
)  # fmt: skip
INTENTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple((name, re.compile(pattern)) for name, pattern in _PATTERNS)

YES = re.compile(r"^(yes|yeah|yep|yup|sure|okay|ok|of course|please|why not|go on|go ahead|absolutely|definitely|all right|alright|mm-?hm+|uh-?huh|right|i (do|would|am|have))\b")  # fmt: skip
NO = re.compile(r"^(no|nope|nah|not (really|now|yet|today)|never|i don't|i do not|rather not)\b")
QUESTION = re.compile(r"^(and |but |so |well |okay |then )*(who|what|when|where|why|how|which|whose|is|are|was|were|do|does|did|can|could|would|will|should|have|has|tell me|explain|define|whats|what's|who's)\b")  # fmt: skip
WHY = re.compile(r"^(but |and |so )*(why|how come)\b")


def plain(text: str) -> str:
    """Lower case, words and apostrophes only, single spaces."""
    return " ".join(re.sub(r"[^\w'\s-]", " ", text.lower().replace("’", "'")).split())


def intent_of(text: str) -> str | None:
    """The name of the intent of `text`, which `plain` has made, or None."""
    return next((name for name, pattern in INTENTS if pattern.search(text)), None)
