"""Sixteen prompts of four kinds, ours; the last kind makes a drafter that echoes one word right."""

CHAT_PROMPTS = {
    "code": (
        "Write a Python function that returns the n-th Fibonacci number.",
        "Write a SQL query that counts the orders of each customer.",
        "Write a shell loop that renames every .txt file to .md.",
        "Write a Python class for a stack with push and pop.",
    ),
    "mathematics": (
        "What is 17 times 23? Show each step.",
        "A train goes 60 km in 45 minutes. How fast is that in km/h?",
        "Tom has 12 apples and gives away a third of them. How many are left?",
        "What is the sum of the first ten odd numbers?",
    ),
    "prose": (
        "Describe a harbour at dawn in one paragraph.",
        "Why do leaves change their colour in autumn?",
        "Write a short letter that thanks a neighbour for her help.",
        "Tell the fable of the fox and the crow.",
    ),
}

REPETITIONS = (
    " the" * 24,
    "Sing along: la la la la la la la la la la la",
    "the the the cat the the the dog the the the bird the the the",
    "0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,",
)

ECHOED_WORD = " the"
