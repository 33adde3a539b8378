"""The health report: its figures, its findings, who holds back vacuum."""
