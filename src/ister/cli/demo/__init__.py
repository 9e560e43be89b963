"""`ister demo`: a broker that is killed, and every message checked."""
