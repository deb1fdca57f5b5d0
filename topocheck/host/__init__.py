"""The one door to the machine: live, recorded, and the recorder around either."""
