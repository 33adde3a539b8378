SELECT current_setting('application_name') AS session_name
