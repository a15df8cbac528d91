def write_page(plan, trials):
    return None
