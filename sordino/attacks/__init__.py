"""What published attacks get out of a run. Attackers are given what their view shows (`observed`), never what is true (`truth`)."""
