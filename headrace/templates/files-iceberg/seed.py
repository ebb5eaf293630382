"""Write example data: three CSV files with 3,000 sales, of which every tenth was returned."""

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path

folder = Path("data/$name")
folder.mkdir(parents=True, exist_ok=True)
for month in (1, 2, 3):
    with (folder / f"2025-{month:02}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["$key", "shop", "cents", "sold_at"])
        for number in range(1000):
            sale = month * 1000 + number
            at = datetime(2025, month, 1, tzinfo=UTC) + timedelta(minutes=number)
            rows.writerow(
                [
                    sale,
                    ("north", "south")[number % 2],
                    number + 1 if number % 10 else -1,
                    at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                ]
            )
print("3 files in data/$name")
