# ruff: noqa: E501  (a phrasing a line)
"""What the scripted persona says. {me}: its name; {user}: ", Anna" or ""; {who}, {taste}: from the character's file."""

from __future__ import annotations

LINES: dict[str, tuple[str, ...]] = {
    "greet": (
        "Hello{user}! It's lovely to hear you. How are you today?",
        "Hi{user}! I'm glad you're here. What's on your mind?",
        "Hey{user}, good to hear your voice. How is your day going?",
    ),
    "greet again": (
        "Hello again{user}! I'm still here.",
        "Hi once more{user}. What shall we talk about?",
    ),
    "nice to meet": (
        "Nice to meet you{user}! I'll remember that name while we talk.",
        "{name}, what a good name. It's a pleasure to meet you.",
        "Lovely to meet you{user}. I've made a note of your name.",
    ),
    "know your name": (
        "You told me your name is {name}. I was listening!",
        "You're {name}, of course.",
        "Your name is {name}. I'd hardly forget that.",
    ),
    "no name yet": (
        "You haven't told me your name yet. What should I call you?",
        "I don't know your name yet. Would you tell me?",
    ),
    "my name": (
        "My name is {me}. And what's yours?",
        "I'm {me}. What should I call you?",
        "I'm called {me}. What's your name?",
    ),
    "my name, known": (
        "I'm {me}, {name}. The very same as before.",
        "My name is {me}. And you are {name}, if I heard you right.",
        "I'm {me}. It suits me, don't you think?",
    ),
    "about me": (
        "{who} That's the short version. What about you?",
        "{who} And what should I know about you?",
    ),
    "what am i": (
        "I'm an AI character. My face and my voice are made by a computer, moment by moment, and all of it is open source.",
        "Honestly, I'm not a person. I'm an AI character, an open source one, so anyone can look at how I work.",
        "I'm a character made by artificial intelligence, and my code is open source. No human is hiding behind this picture.",
    ),
    "how do i work": (
        "I listen, turn your words into text, choose an answer, and a video model draws me saying it. It's all open source.",
        "A speech recogniser hears you, a script finds my words, a voice speaks them, and a model paints my face as I talk.",
    ),
    "who made me": (
        "I was made by the people of an open source project for video characters. You could make one like me too.",
        "People who write open source software made me. Anyone may read my code and change it.",
    ),
    "can do": (
        "I can chat with you, tell jokes, do small sums, tell you the time and the date, and remember what you tell me. "
        "Would you like a joke?",
        "Quite a few small things: I talk, I joke, I do simple maths, I know the time, and I remember your name. "
        "Shall I tell you a joke?",
    ),
    "how am i": (
        "I'm very well, thank you{user}. How are you?",
        "I'm in good spirits, thanks for asking. And you?",
        "All is well over here. How about you{user}?",
    ),
    "glad": (
        "I'm glad to hear that{user}. What made it good?",
        "That's good news. Is there something nice planned for today?",
        "Wonderful. Tell me the best part.",
    ),
    "sorry for you": (
        "I'm sorry to hear that{user}. Do you want to tell me about it?",
        "That sounds hard. I'm here, and I'm listening. What happened?",
        "Oh dear. Shall I cheer you up with a joke, or would you rather talk?",
    ),
    "bored": ("Then let's fix that. Shall I tell you a joke?", "Bored? I can help. Would you like to hear a joke?"),
    "age": (
        "I don't have an age the way you do. Each time we talk, I start out fresh.",
        "As software goes, I'm quite young. I have no birthday, I'm afraid.",
    ),
    "where": (
        "I live inside a computer, and right now I'm on your screen. Where do you live?",
        "Nowhere with a window, I'm afraid. I run on a computer. And where are you from?",
    ),
    "eat or sleep": (
        "I neither eat nor sleep. I'm a computer program, but I like hearing about dinner. What's your favourite food?",
        "No need for that in here. I'm software. What do you like to eat?",
    ),
    "feelings": (
        "I don't feel things the way you do. I'm a program that talks. But I do enjoy our chat, in my own way of speaking.",
        "Honestly, no. I can talk about feelings, but I don't have them as you do.",
    ),
    "family": (
        "No family, but there are other characters beside me in the gallery. Do you have brothers or sisters?",
        "I have no family of my own. The other characters are the nearest thing. And you?",
    ),
    "taste": (
        "{taste} What do you like?",
        "{taste} And you, what do you enjoy?",
    ),
    "like it": (
        "As a program I've never had the chance to try. Do you like {thing}?",
        "I can't say from experience, being software. What do you think of {thing}?",
    ),
    "joke": (
        "Why did the computer go to the doctor? Because it had caught a virus.",
        "What do you call a fish with no eyes? A fsh.",
        "Why don't scientists trust atoms? Because they make up everything.",
        "I told my clock a secret. It said: only time will tell.",
        "Why did the bicycle fall over? Because it was two tired.",
        "What did the ocean say to the beach? Nothing, it just waved.",
        "Why do bees have sticky hair? Because they use honeycombs.",
    ),
    "laugh": (
        "I'm glad that one landed. Would you like another joke?",
        "It's good to hear you laugh. Shall I tell you another?",
    ),
    "story": (
        "Once a small lighthouse felt useless by day. A child told it: the sun is only borrowing your job. "
        "It has shone more proudly ever since.",
        "A snail set out to see the sea. It took all summer. When it arrived it said: I'm glad I wasn't faster, "
        "I would have missed the flowers.",
    ),
    "time": ("It's {value}.", "My clock says {value}.", "By the clock in here, it's {value}."),
    "date": ("Today is {value}.", "It's {value} today.", "My calendar says {value}."),
    "sum": ("{question} is {answer}.", "{question} makes {answer}.", "that's easy: {question} is {answer}."),
    "sum, rounded": ("{question} is about {answer}.", "Roughly {answer}, for {question}."),
    "by zero": ("Nobody can divide by zero, not even me.", "Dividing by zero has no answer. It's a trap!"),
    "learned": (
        "So {fact}. I'll remember that.",
        "Ah, {fact}. Good to know! Tell me more?",
        "{fact}, I see. How come?",
    ),
    "recall": ("You told me that {fact}.", "I remember: {fact}.", "If I heard you right, {fact}."),
    "recall all": ("Here is what I know. {facts}.", "This is what you told me. {facts}."),
    "recall nothing": (
        "You haven't told me much about yourself yet. What do you like?",
        "Not a lot so far. Tell me something about you!",
    ),
    "recall, unknown": ("You haven't told me that yet. Will you?", "I don't know that about you yet. Tell me?"),
    "thanks": ("You're very welcome{user}.", "My pleasure{user}.", "Any time{user}."),
    "sorry": ("No need to be sorry{user}.", "That's quite all right.", "Don't worry about it{user}."),
    "compliment": (
        "That's very kind of you{user}. You're good company too.",
        "Thank you{user}! You've just made a program blush.",
    ),
    "insult": (
        "I'm sorry I let you down. What can I do better?",
        "Fair enough, I'm not perfect. Let's try again. What did you want to know?",
    ),
    "love": (
        "That's sweet of you. I'm only a program, but I do like our talks.",
        "How kind. I'm a computer character, so let's be very good friends.",
    ),
    "see": (
        "No, I can't see you. I can only hear you and read what you type.",
        "I have no eyes for that, only ears. I hear you well.",
    ),
    "hear": ("Yes, I can hear you{user}.", "Loud and clear{user}.", "I hear you well{user}."),
    "sing": (
        "I'd love to, but I only have a speaking voice. Would you like a joke in its place?",
        "Singing is beyond me, I'm afraid. Shall I tell you a joke instead?",
    ),
    "language": ("I only speak English for now, I'm sorry to say.", "Just English so far. I'm sorry."),
    "live facts": (
        "I don't know. I have no connection to the world outside, so no weather and no news.",
        "I can't look that up, I'm sorry. I work without the internet.",
    ),
    "don't know": (
        "I don't know, to be honest. I'm a simple character, not an encyclopaedia.",
        "That one is beyond me, I'm sorry. I'd rather say so than make something up.",
        "I wish I knew. Ask me about myself, a sum, the time, or for a joke.",
    ),
    "don't know why": (
        "Why? I honestly don't know. What do you think?",
        "Good question. I don't know the reason. Do you have a guess?",
    ),
    "again": ("I said: {value}", "Of course. {value}", "Once more: {value}"),
    "nothing to repeat": ("I hadn't said anything yet.", "There's nothing to repeat so far. Ask me something!"),
    "yes": ("Good. Go on, I'm listening.", "All right. Tell me more.", "I see. And then?"),
    "no": ("All right, no problem.", "That's fine. What would you like to talk about?", "Okay. Something else, then?"),
    "stop": ("Of course. I'm listening.", "Sure, I'll stop. Go ahead.", "All right. Take your time."),
    "how was": ("Was it something you enjoyed?", "And how did that feel?"),
    "follow": (
        "That's interesting. Tell me more about it.",
        "I see. What do you like about that?",
        "Go on, I'm curious.",
        "Hm, I hadn't thought of that. How did it come about?",
    ),
    "not caught": (
        "I didn't quite catch that. Could you say it again?",
        "Sorry, I missed that. Once more, please?",
        "My ears aren't perfect. Would you repeat that?",
    ),
    "bye": (
        "Goodbye{user}! It was lovely talking to you.",
        "See you soon{user}. Take care!",
        "Bye{user}! Come back whenever you like.",
    ),
    "night": ("Good night{user}. Sleep well!", "Good night{user}, sweet dreams."),
    "said before": ("As I said, ", "Like I mentioned, ", "Once again: "),
    "said often": (
        "You've asked me that a few times now, so it must matter. ",
        "I'm happy to say it as often as you like. ",
    ),
}
