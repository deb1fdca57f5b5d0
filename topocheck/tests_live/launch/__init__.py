"""How ranks start and meet: started here or by a launcher, where they meet, and who they are."""
