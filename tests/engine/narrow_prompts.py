"""Prompts of one narrow traffic, SQL questions, to show how a drafter adapts to it.

`python -m tests.engine.narrow_prompts OUTPUT.jsonl` writes all; a table is a group, so held-out
tables are unseen.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

TABLES = """
customers: name, city, signup_date | orders: customer_id, total, order_date
employees: name, department, salary | products: name, category, price
students: name, grade, school | books: title, author, published_year
flights: origin, destination, departure_time | hotels: name, city, rating
movies: title, director, release_year | songs: title, artist, duration
patients: name, age, doctor | invoices: supplier, amount, due_date
cars: brand, model, mileage | courses: title, teacher, credits
teams: name, league, points | players: name, team, goals
recipes: name, cuisine, minutes | shipments: carrier, weight, shipped_on
tickets: subject, priority, opened_at | articles: headline, section, views
sensors: location, reading, measured_at | houses: street, rooms, price
animals: species, habitat, weight | subscriptions: plan, user_id, renewed_on
trains: line, station, delay_minutes | museums: name, country, visitors
farms: owner, crop, hectares | payments: method, amount, paid_at
stores: city, manager, revenue | meetings: topic, room, starts_at
"""

TEMPLATES = """
Write a SQL query that lists every row of the table {table} with columns {columns}.
Write a SQL query that counts the rows of {table} for each {first}.
Write a SQL query that finds the {table} with the highest {last}.
Write a SQL query that shows the {first} and {last} of all {table}, sorted by {last}.
Write a SQL query that returns the ten {table} with the lowest {last}.
Write a SQL query that computes the average {last} of {table} for each {second}.
Write a SQL statement that creates the table {table} with the columns {columns}.
Write a SQL statement that inserts a row into {table} ({columns}).
Write a SQL statement that deletes the {table} whose {last} is missing.
Write a SQL statement that updates the {last} of one of the {table} by its {first}.
How do I select the distinct {second} of {table} in SQL?
How do I find duplicate {first} values in the table {table} with SQL?
Write a SQL query that finds the {table} whose {first} starts with the letter A.
Write a SQL query that groups {table} by {second} and keeps groups of more than five rows.
"""


def list_rows() -> Iterator[dict[str, str]]:
    for entry in TABLES.strip().replace("\n", " | ").split(" | "):
        table, columns = (part.strip() for part in entry.split(":"))
        first, second, last = columns.split(", ")
        words = {"table": table, "columns": columns, "first": first, "second": second, "last": last}
        for template in TEMPLATES.strip().splitlines():
            yield {"kind": "sql", "group": f"table:{table}", "prompt": template.format(**words)}


if __name__ == "__main__":
    lines = [json.dumps(row) for row in list_rows()]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
