"""Decides ranks, bindings and orders; rendering only prints what is decided here."""
