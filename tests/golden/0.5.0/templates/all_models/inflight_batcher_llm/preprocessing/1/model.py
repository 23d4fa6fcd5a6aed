# upstream's
