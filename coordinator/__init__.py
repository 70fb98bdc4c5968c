"""Everything ZooKeeper: who is a member, what is deployed, and who decides."""
