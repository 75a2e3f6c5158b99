"""Times as operators compare them with logs: to the second, in UTC, sorted as text."""

DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
DATETIME_FORMAT = "Y-m-d H:i:s"
