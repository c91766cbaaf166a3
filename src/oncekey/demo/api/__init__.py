"""The payments API: charges and refunds of accounts, guarded by oncekey."""
