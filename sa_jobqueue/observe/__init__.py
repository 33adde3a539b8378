"""Subscribers to what workers tell: nobody below imports them."""
