// Carries the precompiled headers (penstock_folder.cmake); nothing is in it.
