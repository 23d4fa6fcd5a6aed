"""Why a server was slow: the parts of each request's time, what they come to, and the sentences that say so."""
