import './base.css';
import './cards.css';
import './owners.css';
