complete --keep-order --exclusive --command rankrun --arguments "(RANKRUN_COMPLETE=fish rankrun -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
