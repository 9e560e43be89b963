"""The tiers composed behind PersistentStorage, and reliable dispatch over them."""
