"""The endpoint layer and the contracts. Plugin authors import from `enginebay`, not from here."""
