echo a >> /data/ran
