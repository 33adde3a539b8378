SELECT set_config('lock_timeout', concat(%(seconds)s::INTEGER, 's'), true) AS set_config_1
