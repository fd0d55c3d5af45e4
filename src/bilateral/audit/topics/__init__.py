"""What an audit tries, by topic. A folder has the experiments on one topic and, in `attacks`, what they attack with."""
