"""A plugin that starts a thread, for which Python would wait at exit."""

import threading
import time

threading.Thread(target=time.sleep, args=(3600,)).start()
