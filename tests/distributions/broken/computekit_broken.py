"""A plugin whose import fails."""

import not_there_at_all

print(not_there_at_all)
